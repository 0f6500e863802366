"""Requests of the page, and how much of them is accepted."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from rollenv.agents.prompts.session import shown
from rollenv.core import UsageError
from rollenv.report.plain import clip, plain
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


#: Characters of an action that is told as it is, so that it can be played again.
ACTION = 100_000

#: Characters of a drawing, of one choice, and choices that are offered.
_VIEW, _CHOICE, _CHOICES = 400_000, 300, 300

#: Where environments list what can be done next.
_LISTS = ("available_actions", "legal_actions", "valid_actions")


def turn_of(method: str, args: list[Any], answer: list[Any]) -> dict[str, Any]:
    """A turn.

    Args:
        answer: to it, see :meth:`rollenv.serve.session.Session.call`.
    """
    if method == "reset":
        observation, info, _, view = answer
        told: dict[str, Any] = {"seed": str(args[0]) if args[0] is not None else ""}
    else:
        observation, reward, terminated, truncated, info, _, view = answer
        action = args[0] if len(args[0]) <= ACTION else clip(args[0])
        told = {"action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
    return told | {
        "observation": clip(shown(observation, info)),
        "info": _info(info),
        "success": info.get("success"),
        "view": view if len(view) <= _VIEW else "",
        **choices(info),
    }


def choices(info: dict[str, Any]) -> dict[str, Any]:
    """The actions that an info offers, and whether it offers a search.

    Args:
        info: of a reset or a step.
    """
    offered = next((info[name] for name in _LISTS if isinstance(info.get(name), dict | list | tuple)), ())
    found: list[str] = []
    search = False
    if isinstance(offered, dict):  # WebShop
        clickables = offered.get("clickables")
        search = offered.get("has_search_bar") is True
        names = clickables if isinstance(clickables, list | tuple) else ()
        found = [f"click[{name}]" for name in names if isinstance(name, str) and name != "search"]
    elif isinstance(offered, list | tuple):
        found = [action for action in offered if isinstance(action, str)]
    return {"choices": [action for action in found[:_CHOICES] if len(action) <= _CHOICE], "search": search}


def _info(info: dict[str, Any]) -> str:
    """As JSON; a large one on one line, since to lay it out takes time."""
    try:
        text = json_of(info)
        return json.dumps(plain(json.loads(text)), indent=2) if len(text) <= 20_000 else clip(text)
    except (TypeError, ValueError, RecursionError) as error:  # endless numbers, say
        return f"(it cannot be shown: {error})"
