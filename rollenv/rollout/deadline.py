"""Deadlines of an episode and of its calls."""

from __future__ import annotations

import asyncio

from rollenv.rollout.group_runner import GRACE

#: Delay of the event loop, in seconds, above which it counts as blocked.
_LATE = 0.5


class DeadlinePassed(Exception):
    """A call did not end before its deadline."""


# Not `asyncio.timeout`: it would also end a call whose answer arrived while the event loop was blocked, and it cancels
# only once, which a retry loop may catch.
class Deadline:
    """An ``async with`` block that raises :class:`DeadlinePassed` if it takes too long; blocks may be nested.

    A block that is cancelled from elsewhere too is left with that CancelledError.

    Args:
        seconds: None for no deadline.
    """

    __slots__ = ("_cancels", "_loop", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float | None):
        self._seconds, self._cancels = seconds, 0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._seconds is not None:
            self._timer = self._loop.call_later(self._seconds, self._fire)

    def _fire(self) -> None:
        assert self._timer is not None
        assert self._task is not None
        late = self._loop.time() - self._timer.when()
        wait = GRACE
        if late > _LATE:  # the event loop was blocked: handle the messages that arrived meanwhile first
            wait = min(late, GRACE)
        else:
            self._cancels += 1
            self._task.cancel()
        self._timer = self._loop.call_later(wait, self._fire)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        assert self._task is not None
        for _ in range(self._cancels):
            self._task.uncancel()
        if self._cancels and not self._task.cancelling():
            raise DeadlinePassed from error
