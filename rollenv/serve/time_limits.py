"""Time limits for many short calls, watched by one timer: a timer for each step costs a fifth of the server's time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

#: Seconds between two checks.
_CHECK_EVERY = 0.05


class TimeLimits:
    """The limits of one event loop, kept to within a twentieth of a second."""

    def __init__(self) -> None:
        self._running: set[TimeLimit] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, limit: TimeLimit) -> None:
        """Watch a limit."""
        self._running.add(limit)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_EVERY, self._check)

    def remove(self, limit: TimeLimit) -> None:
        """Stop watching a limit."""
        self._running.discard(limit)

    def _check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_EVERY, self._check) if self._running else None
        now = time.monotonic()
        for limit in [each for each in self._running if now > each.end]:
            self._running.discard(limit)
            limit.expire()


class TimeLimit:
    """A limit for a ``with`` block, which is cancelled and raises TimeoutError, like ``asyncio.timeout``.

    Args:
        on_expiry: called in place of cancelling the block.
    """

    __slots__ = ("_expired", "_limits", "_on_expiry", "_seconds", "_task", "end")

    def __init__(self, limits: TimeLimits, seconds: float, on_expiry: Callable[[], None] | None = None):
        self._limits, self._seconds, self._on_expiry = limits, seconds, on_expiry
        self._task: asyncio.Task[object] | None = None
        self._expired, self.end = False, 0.0

    def expire(self) -> None:
        """Cancel the block, or make the call."""
        if self._on_expiry is not None:
            self._on_expiry()
        elif self._task is not None:
            self._expired = True
            self._task.cancel()

    def start(self) -> None:
        """Begin without a block. It needs ``on_expiry``; :meth:`stop` ends it."""
        self.end = time.monotonic() + self._seconds
        self._limits.add(self)

    def stop(self) -> None:
        """End what :meth:`start` began."""
        self._limits.remove(self)
        self._on_expiry = None  # it refers to the holder of this limit

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        task, self._task = self._task, None
        if self._expired and task is not None and task.uncancel() <= 0 and kind is asyncio.CancelledError:
            raise TimeoutError from error
