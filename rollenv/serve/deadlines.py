"""Time limits for many short calls: one timer looks after all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

#: Seconds between two looks.
_EVERY = 0.05


class Deadlines:
    """Limits that are kept to within a twentieth of a second; ``asyncio.timeout`` costs a timer for each call."""

    def __init__(self) -> None:
        self._limits: set[Limit] = set()
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, seconds: float, late: Callable[[], None] | None = None) -> Limit:
        """A limit for a ``with`` block.

        Args:
            seconds: that the block may take.
            late: called once these have passed; by default the block is cancelled and raises TimeoutError.
        """
        return Limit(self, time.monotonic() + seconds, late)

    def _add(self, limit: Limit) -> None:
        self._limits.add(limit)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY, self._look)

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_EVERY, self._look) if self._limits else None
        now = time.monotonic()
        for limit in [each for each in self._limits if now > each.end]:
            self._limits.discard(limit)
            limit.over()


class Limit:
    """The time of one block."""

    __slots__ = ("_call", "_cancelled", "_deadlines", "_task", "end")

    def __init__(self, deadlines: Deadlines, end: float, late: Callable[[], None] | None):
        self._deadlines, self.end, self._call = deadlines, end, late
        self._task: asyncio.Task[object] | None = None
        self._cancelled = False

    def over(self) -> None:
        """The time has passed."""
        if self._call is not None:
            self._call()
        elif self._task is not None:
            self._cancelled = True
            self._task.cancel()

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self.start()

    def start(self) -> None:
        """Begin without a block; :meth:`stop` ends it. It needs something to call once the time has passed."""
        self._deadlines._add(self)

    def stop(self) -> None:
        """What was begun by :meth:`start` is over."""
        self._deadlines._limits.discard(self)
        self._call = None  # which leads back here, where it is of who holds the limit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadlines._limits.discard(self)
        if self._cancelled and self._task is not None and self._task.uncancel() <= 0 and kind is asyncio.CancelledError:
            raise TimeoutError from error
