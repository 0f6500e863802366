"""Deadlines of an episode and of its calls."""

from __future__ import annotations

import asyncio
import contextlib
import math

from rollenv.rollout.group_runner import GRACE

#: Delay of the event loop, in seconds, above which it counts as blocked.
_LATE = 0.5


class Watchdog:
    """Deadlines of one task, for a call and for the whole episode, with one timer that is rarely moved."""

    __slots__ = ("_loop", "_task", "_timer", "cancels", "due", "end", "expired")

    def __init__(self, end: float | None):
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self.cancels = 0
        self.due = math.inf
        self.end = math.inf if end is None else self._loop.time() + end
        self.expired = ""
        """The deadline that passed: "call" or "episode"."""
        self._set()

    def watch(self, seconds: float | None) -> None:
        """Start the deadline of a call."""
        if seconds is not None:
            self.due = self._loop.time() + seconds
            self._set()

    def rest(self) -> None:
        """End the deadline of a call."""
        self.due = math.inf

    def resume(self, due: float) -> None:
        """Restore the deadline of a call after a nested one."""
        self.due = due
        self._set()

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def call_expired(self) -> bool:
        """Return whether the call's deadline cancelled the task; true only once."""
        if self.expired != "call":
            return False
        self.expired = ""
        assert self._task is not None
        for _ in range(self.cancels):
            self._task.uncancel()
        self.cancels = 0
        return True

    def cancellation_pending(self) -> bool:
        """Return whether a cancellation is pending, whoever caused it; callers exclude their own first."""
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
        if late > _LATE:  # the event loop was blocked: handle the messages that arrived meanwhile first
            self.due, self.end = (max(when, now + min(late, GRACE)) for when in (self.due, self.end))
        if min(self.due, self.end) > now:
            self._set()
        elif self._task is not None:
            self.expired = self.expired or ("call" if self.due <= now else "episode")
            self.cancels += 1
            self._task.cancel()
            self._timer = self._loop.call_later(GRACE, self._fire)  # the task may catch its cancellation
