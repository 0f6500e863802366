"""Enforces the limits of what runs: time, memory, processor time between requests, and its turn."""

from __future__ import annotations

import select
import signal
import time

from rollenv.sandbox.inside.monitor import ResourceMonitor
from rollenv.sandbox.inside.processes import Child, Job, Namespace
from rollenv.sandbox.inside.protocol import Cell, Run

#: Seconds between checks of running requests, and of background work.
WATCH_INTERVAL, IDLE_INTERVAL = 0.02, 1.0
#: Seconds after which a run yields to younger ones.
YIELD_AFTER = 0.1
#: Seconds that code has to react to an interrupt before it is killed.
GRACE = 0.5
#: Seconds after a request until background work counts, and the share of a processor it may have after that.
IDLE_BEGINS, _IDLE_SHARE = 0.05, 0.1


class LimitEnforcer:
    """The part of a kernel that enforces limits.

    Args:
        monitor: looks at memory and time.
        idle_seconds: processor time that what stays between requests may use.
    """

    def __init__(self, monitor: ResourceMonitor, idle_seconds: float):
        self.monitor = monitor
        self.idle_seconds = self._idle_left = idle_seconds
        self._idle_at: tuple[float, float] | None = None  # when it was looked at, and the processor time then
        self.namespaces: list[Namespace] = []
        self.shared: Namespace | None = None
        self._look_at = self._looked = self._lower_at = 0.0
        self._paused_at: float | None = None
        self._ending = False  # whether everything in the shared namespace is being ended

    def _on_namespace(self, namespace: Namespace) -> bool:
        raise NotImplementedError

    def _rested(self) -> None:
        """A request is done. If no other request is running, background work counts from now."""
        if not self._busy():
            self.monitor.restore_priority()
            self._look_at = min(self._look_at, time.monotonic() + IDLE_BEGINS)

    def _starts(self, now: float) -> None:
        """Look at what begins, but not so early that a short run has to wait for it."""
        self.monitor.killed()  # what went before is not its fault
        if self._idle_at is not None:
            self._hold_idle(now)
            self._idle_at = None
        soon = now + WATCH_INTERVAL / 2
        if self._look_at > soon or now - self._looked < IDLE_INTERVAL / 4 or self.shared is None:
            self._look_at = soon if self._look_at <= now else min(self._look_at, soon)

    def _go_on(self) -> None:
        """After a pause, which no time limit counts."""
        if self._paused_at is None or self.shared is None:
            self._paused_at = None
            return
        pause, self._paused_at = time.monotonic() - self._paused_at, None
        for child in self.shared.children.values():
            if child.job is not None:
                child.job.deadline += pause
        self.shared.order(signal_all=int(signal.SIGCONT))

    def _busy(self) -> bool:
        jobs = (child.job for namespace in self.namespaces for child in namespace.children.values())
        return any(job is not None and not job.quiet for job in jobs)

    def _patience(self) -> float | None:
        jobs = [child.job for namespace in self.namespaces for child in namespace.children.values() if child.job]
        now = time.monotonic()
        if (not jobs and self.shared is None) or self._paused_at is not None:
            return None
        until = min([self._look_at, *(job.deadline for job in jobs)])
        return max(0.0, min(until - now, 3600.0))

    def _enforce(self) -> None:
        now = time.monotonic()
        if self._paused_at is not None:
            return
        oldest = now
        for namespace in list(self.namespaces):
            for child in list(namespace.children.values()):
                if child.job is not None:
                    oldest = min(oldest, child.job.started)
                    if now >= child.job.deadline:
                        self._timed_out(child, child.job, now)
        if now < self._look_at or not self.namespaces:
            return
        busy = self._busy()
        wait = WATCH_INTERVAL if busy else IDLE_INTERVAL
        if self.monitor.counts:
            scratches = [each.scratch for each in self.namespaces if each.scratch is not None]
            used = self.monitor.used(scratches)
            wait = min(wait, self.monitor.patience(used))
            if used > self.monitor.limit:
                self._out_of_memory()
        elif self.monitor.killed():
            self._out_of_memory()
        if now - oldest > YIELD_AFTER and now >= self._lower_at:
            self.monitor.lower_priority()
            self._lower_at = now + YIELD_AFTER
        if not busy and self.shared is not None:
            self._hold_idle(now)
        self._look_at, self._looked = time.monotonic() + wait, now

    def _hold_idle(self, now: float) -> None:
        """Work between requests has as much processor time as a request, and a tenth of the time that passes."""
        seconds, before = self.monitor.cpu_seconds(), self._idle_at
        self._idle_at = (now, seconds)
        if before is not None:
            left = self._idle_left - (seconds - before[1]) + _IDLE_SHARE * (now - before[0])
            self._idle_left = min(left, self.idle_seconds)
        if self._idle_left < 0:
            self._idle_left = self.idle_seconds
            self._stop_all()
            self._settle()

    def _timed_out(self, child: Child, job: Job, now: float) -> None:
        if isinstance(job.request, Cell) and not job.flags["timed_out"]:
            job.deadline = now + GRACE  # a context keeps its state if it reacts to the interrupt
            child.namespace.signal(child, signal.SIGINT, False)
        else:
            job.deadline = float("inf")
            self._stop(child)
        job.flags["timed_out"] = True

    def _out_of_memory(self) -> None:
        for namespace in self.namespaces:
            for child in namespace.children.values():
                if child.job:
                    child.job.flags["out_of_memory"] = True
        self._stop_all()
        self._settle()

    def _settle(self) -> None:
        """Wait until those that were killed are gone, lest the next request goes to one, or pays for their memory."""
        until = time.monotonic() + 2.5
        while self.shared is not None and self._ending and (left := until - time.monotonic()) > 0:
            if select.select([self.shared.connection], [], [], left)[0] and not self._on_namespace(self.shared):
                break  # its end is noticed elsewhere

    def _stop(self, child: Child) -> None:
        """Kill a process and its session; a run's whole namespace."""
        if child.job is not None and isinstance(child.job.request, Run):
            child.namespace.end()
        else:
            child.namespace.signal(child, signal.SIGKILL, True)

    def _stop_all(self) -> None:
        for namespace in self.namespaces:
            if namespace is self.shared:
                self._ending = True
                namespace.order(end_all=0)
            else:
                namespace.end()
