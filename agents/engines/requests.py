"""Requests of the local engine, and the order in which waiting ones start."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rollenv.agents.engines.base import Ids, Response, Sampling
from rollenv.agents.engines.radix import common_prefix

if TYPE_CHECKING:
    from rollenv.agents.vision import Sight

#: Minimum number of saved tokens for which a request waits for another one, about the cost of a call of the model.
WORTH_WAITING = 32


@dataclass(slots=True, eq=False)
class LocalRequest:
    """A prompt and its response so far."""

    prompt: Ids
    sampling: Sampling
    rng: random.Random
    limit: int
    """Maximum number of response tokens."""
    future: asyncio.Future[None]
    response: Response = field(default_factory=Response)
    failure: str = ""
    """The error that ended it."""
    sight: Sight | None = None
    """The pictures of its prompt."""
    routes: NDArray[np.int16] | None = None
    """The experts of tokens that were computed with earlier weights."""

    @property
    def tokens(self) -> Ids:
        """The prompt and the response so far."""
        return self.prompt + tuple(self.response.ids)

    @property
    def length(self) -> int:
        """Tokens of the prompt and the response so far."""
        return len(self.prompt) + len(self.response.ids)

    @property
    def room(self) -> int:
        """Maximum number of tokens of the prompt and the response."""
        return len(self.prompt) + self.limit


@dataclass(slots=True)
class Joining:
    """Waiting requests with equal tokens, and the source of their known keys and values."""

    tokens: Ids
    requests: list[LocalRequest] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    """The known prefix, from :meth:`PrefixCache.find`."""
    like: Joining | None = None
    """Requests that start earlier and have the same first ``shared`` tokens."""
    shared: int = 0
    row: int = -1
    """Row of the first request in the cache; -1 until its tokens are computed."""

    @property
    def known(self) -> int:
        """Number of tokens that are copied from ``like`` or from the cache."""
        return self.shared or len(self.cached)

    @property
    def cost(self) -> int:
        """Number of tokens to compute."""
        return len(self.tokens) - self.known

    @property
    def usable(self) -> bool:
        """True if others can copy its keys and values."""
        return self.row >= 0 and not self.requests[0].failure


def start_order(joining: Iterable[Joining]) -> list[list[Joining]]:
    """Order requests into batches: a request with a long common prefix starts after the one that computes it."""
    ordered: list[list[Joining]] = []
    pending = sorted(joining, key=lambda j: j.tokens, reverse=True)  # long common prefixes become adjacent
    while pending:
        batch: list[Joining] = []
        later: list[Joining] = []
        for new in pending:
            shared = min(common_prefix(batch[-1].tokens, new.tokens), len(new.tokens) - 1) if batch else 0
            if shared >= new.known + WORTH_WAITING:
                new.like, new.shared = batch[-1], shared
                later.append(new)
            else:
                batch.append(new)
        ordered.append(batch)
        pending = later
    return ordered


def similar(joining: list[Joining]) -> list[list[Joining]]:
    """Split requests into batches of similar cost, so that less than half of each is padding."""
    batches: list[list[Joining]] = []
    for new in sorted(joining, key=lambda j: j.cost):
        if batches and new.cost <= 2 * batches[-1][0].cost + 16:
            batches[-1].append(new)
        else:
            batches.append([new])
    return batches
