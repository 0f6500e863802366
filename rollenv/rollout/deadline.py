"""Deadlines of an episode and of its calls."""

from __future__ import annotations

import asyncio
import math

from rollenv.rollout.group_runner import GRACE

#: Delay of the event loop, in seconds, above which it counts as blocked.
_LATE = 0.5


class DeadlinePassed(Exception):
    """A call did not end before its deadline."""


# Not `asyncio.timeout`: it would also end a call whose answer arrived while the event loop was blocked, and it cancels
# only once, which a retry loop may catch. A timer for each block would take as long as three of a cheap environment's
# turns in a hundred: one that is left to run, and set again when it fires too early, takes none.
class Deadline:
    """An ``async with`` block that raises :class:`DeadlinePassed` if it takes too long; it can be entered again.

    A block that is cancelled from elsewhere too is left with that CancelledError. It belongs to the task that creates
    it. Blocks of several deadlines may be nested.

    Args:
        seconds: None for no deadline.
    """

    __slots__ = ("_cancels", "_due", "_loop", "_task", "_timer", "seconds")

    def __init__(self, seconds: float | None):
        self.seconds, self._cancels, self._due = seconds, 0, math.inf
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def passed(self) -> bool:
        """True if the time of the block ran out, which is then being cancelled."""
        return self._cancels > 0

    async def __aenter__(self) -> None:
        self._cancels = 0
        if self.seconds is not None:
            self._due = self._loop.time() + self.seconds
            if self._timer is None:
                self._timer = self._loop.call_at(self._due, self._fire)

    def _fire(self) -> None:
        assert self._timer is not None
        assert self._task is not None
        now, again = self._loop.time(), self._due
        late = now - self._timer.when()
        if again <= now and late > _LATE:  # the event loop was blocked: first the messages that arrived meanwhile
            again = now + min(late, GRACE)
        elif again <= now:
            self._cancels += 1
            self._task.cancel()
            again = now + GRACE
        self._timer = self._loop.call_at(again, self._fire) if again < math.inf else None

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._due = math.inf
        if self._cancels:
            assert self._task is not None
            for _ in range(self._cancels):
                self._task.uncancel()
            if not self._task.cancelling():
                raise DeadlinePassed from error

    def stop(self) -> None:
        """Stop the timer, after the last block."""
        if self._timer is not None:
            self._timer.cancel()
