"""Requests of the page, and how much of them is accepted."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from rollenv.core import UsageError
from rollenv.serve.auth import Client
from rollenv.serve.responses import json_of

#: Actions of a replay, and bytes of all of them.
ACTIONS, BYTES = 2_000, 1 << 20

#: Characters of a mapping, as JSON.
_MAPPING = 10_000

#: Seeds that are drawn where none is given are below; what a client gives fits into 63 bits.
_SEEDS, _ALL_SEEDS = 10_000, 1 << 63


@dataclass(frozen=True)
class PageRequest:
    """A request."""

    client: Client
    body: dict[str, Any]

    def text(self, name: str, most: int = 1000) -> str:
        """A text.

        Raises:
            UsageError: it is missing, no text, or too long.
        """
        value = self.body.get(name)
        if not isinstance(value, str):
            raise UsageError(f"the request needs {name!r}, a text")
        if len(value) > most:
            raise UsageError(f"{name!r} has {len(value)} characters; at most {most} are taken")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """A mapping, empty if there is none.

        Raises:
            UsageError: it is something else, or large.
        """
        value = self.body.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or len(json_of(value)) > _MAPPING:
            raise UsageError(f"{name!r} is a mapping of at most {_MAPPING} characters of JSON")
        return value

    def seed(self, *, needed: bool = False) -> int:
        """The seed, in digits, for numbers of JavaScript are not exact; a small random one if there is none.

        Args:
            needed: whether there has to be one.

        Raises:
            UsageError: it is no seed.
        """
        given = self.body.get("seed", "")
        if given == "" and not needed:
            return secrets.randbelow(_SEEDS)
        digits = str(given) if isinstance(given, int) and not isinstance(given, bool) else given
        wrong = not isinstance(digits, str) or not (digits.isascii() and digits.isdigit()) or len(digits) > 30
        if wrong or int(digits) >= _ALL_SEEDS:
            raise UsageError(f"a seed is a whole number from 0 to {_ALL_SEEDS - 1}, not {given!r:.40}")
        return int(digits)

    def actions(self) -> list[str]:
        """The actions of a replay.

        Raises:
            UsageError: they are no texts, or too many or too long.
        """
        actions = self.body.get("actions")
        if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
            raise UsageError("the request needs 'actions', a list of texts")
        size = sum(len(action.encode("utf-8", "replace")) for action in actions)
        if len(actions) > ACTIONS or size > BYTES:
            raise UsageError(
                f"{len(actions)} actions of {size} bytes are too long a replay; at most {ACTIONS} of {BYTES} bytes are "
                "played"
            )
        return actions
