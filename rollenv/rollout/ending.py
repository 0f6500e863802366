"""Ending coroutines of other authors: a cancelled one ends, whatever it catches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Seconds that a coroutine has to clean up after it was cancelled.
GRACE = 5.0


class Ending(Generic[T]):
    """Awaits something that may catch its cancellation. It is closed when its task is cancelled again.

    Args:
        meant: whether a cancellation is the rollout's; others belong to the awaitable.
    """

    def __init__(self, awaitable: Awaitable[T], meant: Callable[[], bool]):
        self._awaitable, self._meant = awaitable, meant

    def __await__(self) -> Generator[Any, None, T]:
        coroutine = _awaited(self._awaitable)
        error: BaseException | None = None
        told = False
        while True:
            try:
                waits_for = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            told = told and self._meant()  # a deadline of something that it waited for has been dealt with inside
            try:
                error = None
                yield waits_for
            except BaseException as caught:
                leaving = isinstance(caught, asyncio.CancelledError) and self._meant()
                if isinstance(caught, GeneratorExit) or (leaving and told):
                    with contextlib.suppress(BaseException):  # it may catch this as well
                        coroutine.close()
                    raise
                told, error = told or leaving, caught


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def insist(task: asyncio.Task[Any]) -> None:
    """Cancel a task, again and again until it ends."""
    if not task.done():
        task.cancel()
        task.get_loop().call_later(GRACE, insist, task)
