"""Slots for workers that may be lost: who waits for one, and when it is started again.

Worker processes, Ray actors, servers and shards are all kept this way. What differs is what a start is, and how a
worker shows that it is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic, TypeVar

from rollenv.core.errors import UsageError

#: Maximum seconds that the first callers wait for all workers, so that they are spread evenly.
SETTLE_SECONDS = 5.0

T = TypeVar("T")
S = TypeVar("S", bound="Slot")


class Slot:
    """The place of a worker, which outlives it."""

    def __init__(self, name: str):
        self.name = name
        self.losses = 0
        self.failures = 0
        """Failed starts in a row."""
        self.last_error = ""
        """Reason of the last loss."""
        self.tried = False
        """True once the first start has succeeded or failed."""

    def report_of(self, state: str, envs: int, pid: int | None = None) -> dict[str, Any]:
        """Return the state as plain data, for the health file."""
        about = {"worker": self.name, "state": state, "envs": envs, "pid": pid}
        return about | {"deaths": self.losses, "last_death": self.last_error}


def restart_delay(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait after so many failures in a row: ``first``, then twice as long each time."""
    return min(longest, first * 2.0 ** min(failures - 1, 64)) if failures else 0.0


class Supervisor(Generic[S]):
    """Slots, used by one event loop at a time; callers get a worker in the order in which they asked.

    Nobody gets one before :meth:`settle`.
    """

    def __init__(self, slots: list[S]):
        self.slots = slots
        self._loop: asyncio.AbstractEventLoop | None = None
        self._settled = False
        self._lines: dict[str, deque[tuple[asyncio.Future[Any], Callable[[], Any]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start_slot(self, slot: S) -> None:
        """Start the worker of a slot; returns before it is ready."""
        raise NotImplementedError

    def time(self) -> float:
        """Return the event loop's time in seconds."""
        return self._loop.time() if self._loop is not None else 0.0

    def attach(self) -> None:
        """Start all slots in the running event loop, once."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise UsageError("these workers are used by another event loop; close them there first")
            self.leave_closed_loop()
        self._loop = loop
        for slot in self.slots:
            slot.tried = False
            self.start_slot(slot)
        loop.call_later(SETTLE_SECONDS, self.settle)
        self.keep(self.watch())

    async def watch(self) -> None:
        """Look after the workers until cancelled."""
        raise NotImplementedError

    def leave_closed_loop(self) -> None:
        """Free what belongs to an event loop that was closed before the workers."""
        self.detach()

    def detach(self) -> None:
        """Forget the event loop, its tasks and its callers."""
        for task in self._tasks:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                task.cancel()
        self._tasks.clear()
        self._lines.clear()
        self._loop, self._settled = None, False

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine until it ends or :meth:`detach` cancels it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def settle(self) -> None:
        """Let the callers have workers from now on."""
        self._settled = True
        self.wake()

    def on_change(self) -> None:
        """Serve the callers, because there may be room; the first ones only when all starts have been tried."""
        self._settled = self._settled or all(slot.tried for slot in self.slots)
        self.wake()

    async def acquire(self, choose: Callable[[], T | None], line: str = "") -> T:
        """Wait until it is this caller's turn and ``choose`` returns something.

        Args:
            choose: returns what the caller gets, and counts it as taken; what it raises is raised here.
            line: callers wait only for those in the same line.
        """
        assigned: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(line, deque()).append((assigned, choose))
        self.wake()
        try:
            return await assigned
        except BaseException:
            if assigned.done() and not assigned.cancelled() and not assigned.exception():
                self.give_back(assigned.result())  # its caller was cancelled
            raise

    def give_back(self, taken: Any) -> None:
        """Undo a choice whose caller was cancelled."""
        raise NotImplementedError

    def wake(self) -> None:
        """Serve the waiting callers, as far as there is room."""
        for line in list(self._lines.values()) if self._settled else ():
            while line:
                assigned, choose = line[0]
                if not assigned.done():
                    try:
                        chosen = choose()
                    except Exception as error:
                        assigned.set_exception(error)
                    else:
                        if chosen is None:
                            break
                        assigned.set_result(chosen)
                line.popleft()

    async def ticks(self, seconds: float) -> AsyncIterator[float]:
        """Yield every so many seconds.

        What is yielded is by how many seconds this was late, if the event loop was blocked: no answer was read then, so
        that a silence of this length says nothing about a worker.
        """
        loop = asyncio.get_running_loop()
        while True:
            asleep = loop.time()
            await asyncio.sleep(seconds)
            late = loop.time() - asleep - seconds
            yield late if late > seconds else 0.0
