"""Deadlines of an episode and of its calls, and who cancelled a task."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from rollenv.core.errors import describe
from rollenv.rollout.group_runner import GRACE

#: Delay of the event loop, in seconds, above which it counts as blocked.
_LATE = 0.5


class DeadlinePassed(Exception):
    """A call did not end before its deadline."""


class StrayError(Exception):
    """A call raised or caused what only the rollout and the user may: a cancellation, an exit, an interrupt."""


# Not a task of its own for each call, in which asyncio would tell who cancelled: then agents that never wait play
# all episodes turn by turn beside each other, so that nothing is told or saved before the last one ends; and one that
# ignores its cancellation cannot be closed, only abandoned.
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

    def start_deadline(self, seconds: float | None) -> float:
        """Start the deadline of a call, and return the time of the one that it replaces."""
        outer, self.due = self.due, math.inf
        if seconds is not None:
            self.due = self._loop.time() + seconds
            self._set()
        return outer

    def restore_deadline(self, due: float) -> None:
        """End the deadline of a call, and restore that of the call around it."""
        self.due = due
        if due < math.inf:
            self._set()

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def take_call_expiry(self) -> bool:
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

    async def swallow_cancellation(self) -> None:
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


class Deadline:
    """An ``async with`` block around one call of an agent, an environment or a reward function.

    A cancellation has five causes, which look the same where it arrives. They are told apart when the call ends:

    1. The call's deadline passed, and the call ended with the cancellation: :class:`DeadlinePassed`.
    2. The deadline passed in the moment in which the call answered or failed. That counts, and the cancellation must
       not reach what is awaited next.
    3. The rollout cancelled the episode, the user pressed Ctrl-C, or the deadline of the whole episode passed: this
       goes through, because it ends more than the call.
    4. The call raised a BaseException of its own accord: :class:`StrayError`.
    5. The call cancelled the task it runs in, and answered all the same: :class:`StrayError` too, and as in 2 the
       cancellation must not reach anything else.

    Args:
        seconds: None for no deadline.
        is_intended: returns whether a BaseException comes from the rollout or the user.
        cancelled: returns whether the rollout cancelled the task.
    """

    __slots__ = ("_cancelled", "_is_intended", "_outer", "_seconds", "_watchdog")

    def __init__(
        self,
        watchdog: Watchdog,
        seconds: float | None,
        is_intended: Callable[[BaseException], bool],
        cancelled: Callable[[], bool],
    ):
        self._watchdog, self._seconds, self._is_intended, self._cancelled = watchdog, seconds, is_intended, cancelled
        self._outer = math.inf

    async def __aenter__(self) -> None:
        self._outer = self._watchdog.start_deadline(self._seconds)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        watchdog = self._watchdog
        watchdog.restore_deadline(self._outer)
        pending = watchdog.cancellation_pending()
        passed = watchdog.take_call_expiry()  # after it, `expired` is about the episode only
        if passed and isinstance(error, asyncio.CancelledError):  # cause 1
            raise DeadlinePassed from None
        if error is not None and not isinstance(error, Exception):
            if watchdog.expired or self._is_intended(error):  # cause 3
                return
            raise StrayError(describe(error)) from error  # cause 4
        if pending and not watchdog.expired and not self._cancelled():  # causes 2 and 5
            await watchdog.swallow_cancellation()
            if error is None and not passed:
                raise StrayError("CancelledError: of its own task")
