"""Run coroutines of a group concurrently, and cancel those not needed. ``RolloutManager`` replaces failed members."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Generic, TypeVar

from rollenv.core.errors import RollenvError

T = TypeVar("T")

#: Seconds that a coroutine has to clean up after it was cancelled.
GRACE = 5.0
#: Passes of the event loop in which a result reaches the caller of ``next``, with some to spare.
_PASSES = 5


class RolloutBroken(RollenvError):
    """The rollout cannot continue; the text says why."""


class GroupRunner(Generic[T]):
    """Runs coroutines concurrently; at the end of the block, those still running are cancelled and awaited.

    Coroutines that never wait would all end before :meth:`next` returns the first of them. So none begins while an
    ended one may still be taken.
    """

    def __init__(self) -> None:
        self.running: set[asyncio.Task[T]] = set()
        self._finished: asyncio.Queue[asyncio.Task[T]] = asyncio.Queue()
        self._cancelled: set[asyncio.Task[T]] = set()
        self._untaken: set[asyncio.Task[Any] | None] = set()
        self._turn = asyncio.Lock()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start another coroutine."""
        task = asyncio.create_task(self._in_turn(coroutine))
        self.running.add(task)
        task.add_done_callback(self._finished.put_nowait)
        task.add_done_callback(lambda _: coroutine.close())  # it may not have begun
        return task

    async def _in_turn(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            async with self._turn:
                for _ in range(_PASSES):
                    if not self._untaken:
                        break
                    await asyncio.sleep(0)
            return await coroutine
        finally:
            self._untaken.add(asyncio.current_task())

    async def next(self) -> T:
        """Return the result of the next coroutine to finish, or raise its exception.

        Raises:
            RolloutBroken: it was cancelled, but not by this runner.
        """
        while True:
            task = await self._finished.get()
            self.running.discard(task)
            self._untaken.discard(task)
            if not task.cancelled():
                return task.result()
            if task not in self._cancelled:
                raise RolloutBroken("the rollout was cancelled from inside; did a callback raise CancelledError?")
            self._cancelled.discard(task)

    def cancel(self, task: asyncio.Task[T]) -> None:
        """Cancel a coroutine; :meth:`next` skips it."""
        self._cancelled.add(task)
        cancel_until_done(task)

    def cancelled(self) -> bool:
        """Return whether this runner cancelled the current task; any other CancelledError is a mistake."""
        return asyncio.current_task() in self._cancelled

    async def __aenter__(self) -> GroupRunner[T]:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for task in self.running:
            self.cancel(task)
        loop, interrupted = asyncio.get_running_loop(), False
        end = loop.time() + 3 * GRACE  # then one that catches every cancellation is left behind
        while any(not task.done() for task in self.running) and loop.time() < end:
            try:
                await asyncio.wait(self.running, timeout=end - loop.time())
            except asyncio.CancelledError:  # the tasks are already being cancelled
                interrupted = True
        for task in self.running:
            if task.done() and not task.cancelled():
                task.exception()
        if interrupted:
            raise asyncio.CancelledError


def cancel_until_done(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and repeat it after each grace period: agents may catch a cancellation, as retry loops do."""
    if not task.done():
        task.cancel()
        task.get_loop().call_later(GRACE, cancel_until_done, task)
