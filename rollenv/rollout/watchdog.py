"""Deadlines of an episode and of the calls in it."""

from __future__ import annotations

import asyncio
import contextlib
import math

from rollenv.rollout.group_runner import GRACE

#: Seconds that the event loop may be late before it counts as blocked.
_LATE = 0.5


class Watchdog:
    """Deadlines of one task, for a call and for the whole episode: one timer, which is rarely moved."""

    __slots__ = ("_loop", "_task", "_timer", "cancels", "due", "end", "expired")

    def __init__(self, end: float | None):
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self.cancels = 0
        self.due = math.inf
        self.end = math.inf if end is None else self._loop.time() + end
        self.expired = ""
        """Which deadline passed: "call" or "episode"."""
        self._set()

    def watch(self, seconds: float | None) -> None:
        """A call begins."""
        if seconds is not None:
            self.due = self._loop.time() + seconds
            self._set()

    def rest(self) -> None:
        """The call is over."""
        self.due = math.inf

    def resume(self, due: float) -> None:
        """Resume a call that another one interrupted, with its old deadline."""
        self.due = due
        self._set()

    def stop(self) -> None:
        """Nothing is watched any more."""
        if self._timer is not None:
            self._timer.cancel()

    def call_expired(self) -> bool:
        """Return whether the task was cancelled because of the call; true once."""
        if self.expired != "call":
            return False
        self.expired = ""
        assert self._task is not None
        for _ in range(self.cancels):
            self._task.uncancel()
        self.cancels = 0
        return True

    def cancelled_inside(self) -> bool:
        """Return whether the task was cancelled by an agent or environment; it may take effect at its next pause."""
        return bool(self._task and self._task.cancelling())

    async def absorb(self) -> None:
        """Clear a cancellation that an agent or environment caused."""
        assert self._task is not None
        while self._task.cancelling():
            self._task.uncancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    def _set(self) -> None:
        when = min(self.due, self.end)
        if when < math.inf and (self._timer is None or when < self._timer.when()):
            self.stop()
            self._timer = self._loop.call_at(when, self._fire)

    def _fire(self) -> None:
        assert self._timer is not None
        now = self._loop.time()
        late = now - self._timer.when()
        self._timer = None
        if late > _LATE:  # the event loop stood still: handle the messages that arrived meanwhile first
            self.due, self.end = (max(when, now + min(late, GRACE)) for when in (self.due, self.end))
        if min(self.due, self.end) > now:
            self._set()
        elif self._task is not None:
            self.expired = self.expired or ("call" if self.due <= now else "episode")
            self.cancels += 1
            self._task.cancel()
            self._timer = self._loop.call_later(GRACE, self._fire)  # for those that do not heed it
