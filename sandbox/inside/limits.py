"""Enforcement of a sandbox's limits: time, memory and work in the background; ``kernel`` bounds output and frames."""

from __future__ import annotations

import signal
import time

from rollenv.sandbox.inside.monitor import ResourceMonitor
from rollenv.sandbox.inside.processes import Namespaces
from rollenv.sandbox.inside.protocol import RunCell

#: Seconds between checks of running requests, and of background work.
_WATCH_INTERVAL, _IDLE_INTERVAL = 0.02, 1.0
#: Seconds after which a run yields to younger ones.
_YIELD_AFTER = 0.1
#: Seconds that code may take to react to an interrupt before it is killed.
_GRACE = 0.5
#: Seconds after a request until background work is limited, and its allowed share of a processor.
_IDLE_BEGINS, _IDLE_SHARE = 0.05, 0.1


class LimitEnforcer:
    """Ends requests that exceed a limit, and background work that continues after them.

    The kernel tells it when requests begin and end, and calls :meth:`enforce` after at most
    :meth:`seconds_until_check`.

    Args:
        idle_seconds: maximum processor time of background work between requests.
    """

    def __init__(self, namespaces: Namespaces, monitor: ResourceMonitor, idle_seconds: float):
        self.namespaces, self.monitor = namespaces, monitor
        self.idle_seconds = self._idle_left = idle_seconds
        self._idle_at: tuple[float, float] | None = None  # time and processor time of the last check
        self._look_at = self._looked = self._lower_at = 0.0

    def on_request_start(self) -> None:
        """Schedule a check, late enough not to delay a short run."""
        now = time.monotonic()
        self.monitor.killed()  # ignore earlier kills
        if self._idle_at is not None:
            self._limit_idle_work(now)
            self._idle_at = None
        soon = now + _WATCH_INTERVAL / 2
        recently = now - self._looked < _IDLE_INTERVAL / 4
        if self._look_at > soon or recently or self.namespaces.shared is None:
            self._look_at = soon if self._look_at <= now else min(self._look_at, soon)

    def on_request_done(self) -> None:
        """Limit background work from now on, if no other request is running."""
        if not self._busy():
            self.monitor.restore_priority()
            self._look_at = min(self._look_at, time.monotonic() + _IDLE_BEGINS)

    def seconds_until_check(self) -> float | None:
        """Return the time until the next check; None if nothing has to be checked."""
        jobs = self.namespaces.jobs()
        if (not jobs and self.namespaces.shared is None) or self.namespaces.paused_at is not None:
            return None
        until = min([self._look_at, *(job.deadline for job in jobs)])
        return max(0.0, min(until - time.monotonic(), 3600.0))

    def enforce(self) -> None:
        """End what has exceeded its time, then, if a check is due, what has exceeded other limits."""
        if self.namespaces.paused_at is not None:
            return
        now = time.monotonic()
        oldest = self._enforce_deadlines(now)
        if now < self._look_at or not self.namespaces.all:
            return
        busy = self._busy()
        wait = _WATCH_INTERVAL if busy else _IDLE_INTERVAL
        if self.monitor.counts:
            used = self.monitor.used(self.namespaces.scratches())
            wait = min(wait, self.monitor.patience(used))
            if used > self.monitor.limit:
                self.out_of_memory()
        elif self.monitor.killed():
            self.out_of_memory()
        if now - oldest > _YIELD_AFTER and now >= self._lower_at:
            self.monitor.lower_priority()
            self._lower_at = now + _YIELD_AFTER
        if not busy and self.namespaces.shared is not None:
            self._limit_idle_work(now)
        self._look_at, self._looked = time.monotonic() + wait, now

    def out_of_memory(self) -> None:
        """End everything, since its memory is shared: all running requests have failed."""
        for job in self.namespaces.jobs():
            job.flags["out_of_memory"] = True
        self.namespaces.end_all()

    def _enforce_deadlines(self, now: float) -> float:
        """Interrupt or kill requests after their deadlines; return when the oldest running request began."""
        oldest = now
        for namespace in list(self.namespaces.all):
            for child in list(namespace.children.values()):
                if child.job is None:
                    continue
                oldest = min(oldest, child.job.started)
                if now < child.job.deadline:
                    continue
                if isinstance(child.job.request, RunCell) and not child.job.flags["timed_out"]:
                    child.job.deadline = now + _GRACE  # so that a context can react and keep its state
                    child.namespace.signal(child, signal.SIGINT, False)
                else:
                    child.job.deadline = float("inf")
                    child.stop()
                child.job.flags["timed_out"] = True
        return oldest

    def _busy(self) -> bool:
        return any(not job.quiet for job in self.namespaces.jobs())

    def _limit_idle_work(self, now: float) -> None:
        """Limit background work to the processor time of a request, plus a tenth of the time that passes."""
        seconds, before = self.monitor.cpu_seconds(), self._idle_at
        self._idle_at = (now, seconds)
        if before is not None:
            left = self._idle_left - (seconds - before[1]) + _IDLE_SHARE * (now - before[0])
            self._idle_left = min(left, self.idle_seconds)
        if self._idle_left < 0:
            self._idle_left = self.idle_seconds
            self.namespaces.end_all()
