"""Real and virtual time for the same asyncio code.

On the virtual clock nothing waits: when every coroutine sleeps, the time jumps to the next wake-up. A schedule of hours
runs in seconds and takes the same decisions.
"""

from __future__ import annotations

import asyncio
import selectors
from enum import Enum
from typing import Any


class Clock(Enum):
    """Real or virtual time. Virtual time works only for coroutines: other processes and threads do not follow it."""

    REAL = "real"
    VIRTUAL = "virtual"

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop that runs on this clock."""
        return asyncio.new_event_loop() if self is Clock.REAL else VirtualLoop()


class Deadlock(RuntimeError):
    """Every coroutine waits for something that will never happen."""


class _JumpingSelector(selectors.SelectSelector):
    """Never waits; adds each timeout to the current time instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Deadlock("deadlock in virtual time: every coroutine waits and nothing is scheduled")
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next scheduled call."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now

    def run_in_executor(self, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("threads cannot run in virtual time")
