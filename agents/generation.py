"""What the engines that run models have in common: token ids in, token ids out."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Protocol

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn. ``temperature`` 0 takes the likeliest token."""

    temperature: float = 1.0
    max_new_tokens: int = 64


@dataclass(slots=True)
class Response:
    """What an engine drew."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of each token, under the distribution it was drawn from (temperature applied)."""
    versions: list[int] = field(default_factory=list)
    """The version of the weights that drew each token."""
    finish: str = "stop"
    """"stop" (a stop token, included in ``ids``) or "length"."""


class Engine(Protocol):
    """Draws responses for many sessions at once."""

    version: int
    max_context: int
    """The most tokens that a prompt and its response may have together."""

    async def generate(self, prompt: Ids, sampling: Sampling, rng: random.Random, *, session: int = -1) -> Response:
        """Draw a response; every draw follows ``rng``. Cancelling the coroutine ends the work on it.

        Args:
            prompt: token ids.
            sampling: how to draw.
            rng: the private stream of the asking session.
            session: a number that stays the same over an episode's turns, so that what was computed for an earlier
                prompt can serve a later one that begins with it; -1 if there is no such thing.
        """
        ...

    def release(self, session: int) -> None:
        """The session ended: forget what is kept for it."""
        ...
