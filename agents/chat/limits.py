"""An endpoint's limits: concurrent requests, and requests and tokens per minute."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


class Window:
    """A limit of ``limit`` in any ``period`` seconds; a single larger amount is sent by itself.

    Args:
        period: length of the sliding window in seconds.
    """

    def __init__(self, limit: float, period: float = 60.0, now: Callable[[], float] = time.monotonic):
        self.limit, self.period, self._now = limit, period, now
        self._taken: deque[Taken] = deque()

    def wait(self, amount: float) -> float:
        """Seconds until ``amount`` may be taken; 0 for now."""
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
    """An amount taken from a :class:`Window`, and when."""

    at: float
    amount: float


class RateLimiter:
    """Lets requests through in order, as the windows and the endpoint's rate limits allow.

    Args:
        requests: the window of requests, or None.
        tokens: the window of tokens, or None.
    """

    def __init__(self, requests: Window | None, tokens: Window | None):
        self._requests, self._tokens = requests, tokens
        self._lock = asyncio.Lock()
        self._closed_until = 0.0

    def close_for(self, seconds: float) -> None:
        """Let no request through for some seconds, because the endpoint asked for a pause."""
        self._closed_until = max(self._closed_until, time.monotonic() + seconds)

    async def enter(self, tokens: int) -> Taken:
        """Wait for the turn of a request of about so many tokens; correct the result when they are known."""
        async with self._lock:
            while (seconds := self._wait(tokens)) > 0:
                await asyncio.sleep(seconds)
            if self._requests:
                self._requests.take(1)
            return self._tokens.take(tokens) if self._tokens else Taken(0.0, tokens)

    def _wait(self, tokens: int) -> float:
        return max(
            self._closed_until - time.monotonic(),
            self._requests.wait(1) if self._requests else 0.0,
            self._tokens.wait(tokens) if self._tokens else 0.0,
        )
