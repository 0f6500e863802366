"""The event loop of a manager: on demand in its caller's thread, or permanently in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any, TypeVar

from rollenv.core.errors import UsageError
from rollenv.rollout.clock import Clock, Deadlock
from rollenv.rollout.group_runner import GRACE

T = TypeVar("T")

logger = logging.getLogger(__name__)


def refuse_running_loop(instead: str) -> None:
    """Raise UsageError, with what to write instead, where an event loop is running: it would be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"an event loop is running here, as in a notebook; use `{instead}`")


class Interrupts:
    """Distinguishes the user's KeyboardInterrupt from one that an environment or an agent raised."""

    def __init__(self) -> None:
        self._waiting = 0

    def take(self) -> bool:
        """Return whether the user pressed Ctrl-C."""
        return self._waiting > 0

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Record each SIGINT before the previous handler runs."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            yield
            return
        self._waiting = 0

        def note(number: int, frame: FrameType | None) -> None:
            self._waiting += 1
            before(number, frame)

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class Loop:
    """An event loop that runs on demand. The garbage collector may close it in any thread."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.loop: asyncio.AbstractEventLoop | None = None
        self.runner = asyncio.Runner(loop_factory=self._make)

    def _make(self) -> asyncio.AbstractEventLoop:
        self.loop = self.clock.new_loop()
        return self.loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self.runner.run(coroutine)

    def reacts(self) -> bool:
        """Return true: a coroutine can always be run."""
        return True

    def close(self) -> None:
        """Free the loop."""
        if self.loop is None or self.loop.is_closed():
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with contextlib.suppress(Deadlock):
                self.loop.run_until_complete(_end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()  # while another loop runs in this thread, this one cannot


class ThreadLoop:
    """An event loop that runs in a thread of its own until it is closed."""

    def __init__(self, clock: Clock):
        self.loop = clock.new_loop()
        self.thread = threading.Thread(target=self._go_on, name="rollout", daemon=True)
        self.thread.start()

    def _go_on(self) -> None:
        """Run the loop until it is stopped; a SystemExit or KeyboardInterrupt ends only the task that raised it."""
        while True:
            try:
                return self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                logger.debug("a task of the rollout raised %r", error)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and wait for it. An interrupt, such as Ctrl-C, cancels it."""
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def reacts(self) -> bool:
        """Return whether the thread responds; false while an environment or an agent blocks it."""
        turn = threading.Event()
        self.loop.call_soon_threadsafe(turn.set)
        return turn.wait(GRACE)

    def close(self) -> None:
        """Cancel all tasks and end the thread. A blocked thread is left running until the process ends."""
        if self.loop.is_closed():
            return
        if threading.current_thread() is self.thread:  # called by the garbage collector: a loop cannot await itself
            self.loop.stop()
            return
        if not self.reacts():
            logger.warning("an environment or agent did not return; its thread keeps running until this process ends")
            return
        self.run(_end_tasks())
        self.run(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(GRACE)
        if not self.thread.is_alive():
            self.loop.close()


async def _end_tasks() -> None:
    """Cancel tasks that agents and callbacks left running; a task that ignores it is abandoned."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=GRACE)
