"""Coroutines of which the first to finish come first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Race(Generic[T]):
    """Runs coroutines side by side. Those that still run when the block is left are cancelled and waited for."""

    def __init__(self) -> None:
        self.running: set[asyncio.Task[T]] = set()
        self._finished: asyncio.Queue[asyncio.Task[T]] = asyncio.Queue()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Let another one run."""
        task = asyncio.create_task(coroutine)
        self.running.add(task)
        task.add_done_callback(self._finished.put_nowait)
        return task

    async def next(self) -> T:
        """The result of the next one to finish; what it raised is raised here."""
        while True:
            task = await self._finished.get()
            self.running.discard(task)
            if not task.cancelled():
                return task.result()

    async def __aenter__(self) -> Race[T]:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
