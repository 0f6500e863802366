"""Calls of agents, environments and reward functions, each in a task of its own and for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from rollenv.core.errors import describe
from rollenv.rollout.group_runner import GRACE, cancel_until_done

T = TypeVar("T")

#: Seconds by which a deadline may be noticed late before the event loop counts as blocked.
_LATE = 0.5


class DeadlinePassed(Exception):
    """A call did not end before its deadline."""


class StrayError(Exception):
    """A call raised or caused what would end more than itself: a cancellation or an exit."""


async def await_call(call: Awaitable[T], seconds: float | None) -> T:
    """Await a call for at most so many seconds.

    The call has a task of its own, so a CancelledError here comes from the rollout, and one in that task from the call.
    When it is no longer wanted it is cancelled, and abandoned if it has not ended after a grace period.

    Args:
        seconds: None for no deadline.

    Raises:
        DeadlinePassed: it did not end in time.
        StrayError: it was cancelled from inside, or tried to end the program.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(_contained(call))
    task.add_done_callback(_read_error)
    began = loop.time()
    try:
        await asyncio.wait((task,), timeout=seconds)
        late = loop.time() - began - seconds if seconds is not None else 0.0
        if not task.done() and late > _LATE:  # the loop was blocked: what arrived meanwhile has to be read first
            await asyncio.wait((task,), timeout=min(late, GRACE))
        in_time = task.done()
    finally:
        if not task.done():
            cancel_until_done(task)
            await asyncio.wait((task,), timeout=GRACE)
    if not in_time:
        raise DeadlinePassed
    if task.cancelled():
        raise StrayError("CancelledError: of its own task")
    return task.result()


async def _contained(call: Awaitable[T]) -> T:
    """Await a call, and keep what it raises from ending the event loop."""
    try:
        return await call
    except (SystemExit, GeneratorExit) as error:
        raise StrayError(describe(error)) from error


def _read_error(task: asyncio.Task[T]) -> None:
    """Mark the error of an abandoned call as seen, which asyncio would log otherwise."""
    if not task.cancelled():
        task.exception()
