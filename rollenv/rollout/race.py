"""Coroutines, yielded in the order in which they finish."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Generic, TypeVar

from rollenv.core import RollenvError
from rollenv.rollout.ending import insist

T = TypeVar("T")


class RolloutBroken(RollenvError):
    """The rollout cannot continue; the text says why."""


class Race(Generic[T]):
    """Runs coroutines concurrently. Those still running at the end of the block are cancelled and awaited."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[T]] = set()
        self._finished: asyncio.Queue[asyncio.Task[T]] = asyncio.Queue()
        self._cancelled: set[asyncio.Task[T]] = set()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start another coroutine."""
        task = asyncio.create_task(coroutine)
        self.running.add(task)
        task.add_done_callback(self._finished.put_nowait)
        return task

    async def next(self) -> T:
        """The result of the next one to finish; its exception is raised here.

        Raises:
            RolloutBroken: it was cancelled, though not by this race.
        """
        while True:
            task = await self._finished.get()
            self.running.discard(task)
            if not task.cancelled():
                return task.result()
            if task not in self._cancelled:
                raise RolloutBroken("the rollout was cancelled from inside; did a callback raise CancelledError?")
            self._cancelled.discard(task)

    def cancel(self, task: asyncio.Task[T]) -> None:
        """Cancel one of them; :meth:`next` skips it."""
        self._cancelled.add(task)
        insist(task)

    def asked(self) -> bool:
        """Whether the running task of this race was cancelled by it: what else is raised as CancelledError is no end
        that anybody wanted."""
        return asyncio.current_task() in self._cancelled

    async def __aenter__(self) -> Race[T]:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for task in self.running:
            self.cancel(task)
        hurried = False
        while any(not task.done() for task in self.running):
            try:
                await asyncio.wait(self.running)
            except asyncio.CancelledError:  # they are being ended already
                hurried = True
        for task in self.running:
            if not task.cancelled():
                task.exception()
        if hurried:
            raise asyncio.CancelledError
