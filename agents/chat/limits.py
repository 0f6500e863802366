"""An endpoint's limits: concurrent requests, and requests and tokens per minute."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


class Window:
    """A limit in any ``period`` seconds; a single amount above the limit is allowed alone.

    Args:
        period: length of the sliding window in seconds.
    """

    def __init__(self, limit: float, period: float = 60.0, now: Callable[[], float] = time.monotonic):
        self.limit, self.period, self._now = limit, period, now
        self._taken: deque[Taken] = deque()

    def wait(self, amount: float) -> float:
        """Return the seconds until ``amount`` may be taken."""
        now = self._now()
        while self._taken and self._taken[0].at + self.period <= now:
            self._taken.popleft()
        excess = sum(taken.amount for taken in self._taken) + amount - self.limit
        until = now
        for taken in self._taken:
            if excess <= 0:
                break
            excess -= taken.amount
            until = taken.at + self.period
        return until - now

    def take(self, amount: float) -> Taken:
        """Take an amount now; the returned entry may be corrected later."""
        taken = Taken(self._now(), amount)
        self._taken.append(taken)
        return taken


@dataclass(slots=True)
class Taken:
    """An amount taken from a :class:`Window`, with its time."""

    at: float
    amount: float


class EndpointRateLimiter:
    """Admits requests in order, within the windows and the endpoint's rate limits."""

    def __init__(self, requests: Window | None, tokens: Window | None):
        self._requests, self._tokens = requests, tokens
        self._lock = asyncio.Lock()
        self._closed_until = 0.0

    def close_for(self, seconds: float) -> None:
        """Admit no request for some seconds, as the endpoint requests."""
        self._closed_until = max(self._closed_until, time.monotonic() + seconds)

    async def enter(self, tokens: int) -> Taken:
        """Wait until a request with an estimated number of tokens is admitted; correct the result afterwards."""
        async with self._lock:
            while (seconds := self._wait(tokens)) > 0:
                await asyncio.sleep(seconds)
            if self._requests:
                self._requests.take(1)
            if self._tokens:
                return self._tokens.take(tokens)
            return Taken(0.0, tokens)

    def _wait(self, tokens: int) -> float:
        seconds = max(0.0, self._closed_until - time.monotonic())
        if self._requests:
            seconds = max(seconds, self._requests.wait(1))
        if self._tokens:
            seconds = max(seconds, self._tokens.wait(tokens))
        return seconds
