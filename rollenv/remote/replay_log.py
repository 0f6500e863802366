"""The log of calls that rebuilds an episode in a new environment."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from rollenv.core.errors import RollenvError

#: An answered call: method, arguments, fingerprint of the answer.
Done = tuple[str, Sequence[Any], int]

#: Number of calls after which a reset without a seed gets one.
LONGEST = 1000


class ReplayDiffers(RollenvError):
    """A replayed call gave another answer than before."""


class ReplayLog:
    """The calls to repeat, in order, since the last reset with a seed or the last restored state."""

    __slots__ = ("calls",)

    def __init__(self, calls: list[Done] | None = None):
        self.calls: list[Done] = calls or []

    def add(self, method: str, args: Sequence[Any], fingerprint: int) -> None:
        """Record a call on which later answers depend."""
        if method == "set_state" or (method == "reset" and args and args[0] is not None):
            self.calls.clear()
        self.calls.append((method, args, fingerprint))

    @property
    def needs_seed(self) -> bool:
        """True if a reset without a seed needs one: the first, which could not be repeated, and after a long log."""
        return not self.calls or len(self.calls) > LONGEST

    def check(self, number: int, fingerprint: int, env_id: str) -> None:
        """Compare the answer to a replayed call, counted from 0, with the first one.

        Raises:
            ReplayDiffers: the answers differ.
        """
        if fingerprint != self.calls[number][2]:
            raise ReplayDiffers(
                f"{env_id}: replayed with the same seed and actions, call {number} gave another answer; `rollenv check "
                f"{env_id}` shows what it depends on"
            )


def new_seed() -> int:
    """Return a random seed of the system."""
    return secrets.randbits(63)
