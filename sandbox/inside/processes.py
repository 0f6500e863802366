"""The kernel's view of namespaces, their processes, requests and limits."""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rollenv.sandbox.inside.monitor import ResourceMonitor
from rollenv.sandbox.inside.protocol import Cell, Report, Resize, Run, Start, encode

Json = dict[str, Any]

#: Seconds between checks of running requests, and of background work.
WATCH_INTERVAL, IDLE_INTERVAL = 0.02, 1.0
#: Seconds after which a run yields to younger ones.
YIELD_AFTER = 0.1
#: Seconds that code may take to react to an interrupt before it is killed.
GRACE = 0.5
#: Seconds after a request until background work is limited, and its allowed share of a processor.
IDLE_BEGINS, _IDLE_SHARE = 0.05, 0.1
#: Bytes of unread input above which a sender must wait.
HIGH_WATER = 1 << 20


class Feed:
    """Writes to a pipe without blocking."""

    def __init__(self, selector: selectors.BaseSelector, fd: int):
        self.selector, self.fd = selector, fd
        self.waiting = bytearray()
        self.closing = self.closed = False
        self.answers: deque[Callable[[bool], None]] = deque()
        os.set_blocking(fd, False)

    def put(self, data: bytes, close: bool = False, then: Callable[[bool], None] | None = None) -> None:
        """Write ``data``; call ``then`` when there is room for more, with false if the pipe was closed."""
        if self.closed:
            if then:
                then(False)
            return
        self.waiting += data
        self.closing |= close
        if then:
            self.answers.append(then)
        self.push()

    def push(self) -> None:
        """Write as much as the pipe accepts now."""
        try:
            while self.waiting:
                del self.waiting[: os.write(self.fd, self.waiting[: 1 << 16])]
        except BlockingIOError:
            if self.fd not in self.selector.get_map():
                self.selector.register(self.fd, selectors.EVENT_WRITE, self.push)
        except OSError:
            self.close()
            return
        while self.answers and len(self.waiting) < HIGH_WATER:
            self.answers.popleft()(True)
        if not self.waiting:
            with contextlib.suppress(KeyError):
                self.selector.unregister(self.fd)
            if self.closing:
                self.close()

    def close(self) -> None:
        """Close the pipe and drop unwritten data."""
        if not self.closed:
            self.closed = True
            with contextlib.suppress(KeyError):
                self.selector.unregister(self.fd)
            os.close(self.fd)
            self.waiting.clear()
        while self.answers:
            self.answers.popleft()(False)


class Job:
    """A request that a process is serving."""

    def __init__(self, number: int, request: Start | Cell):
        self.number, self.request = number, request
        self.window = request.window if isinstance(request, Start) else 0
        self.quiet = isinstance(request, Start) and request.quiet
        self.unacknowledged = 0  # bytes of output
        self.shown = 0  # results that were sent
        self.started = time.monotonic()
        self.deadline = self.started + request.timeout if request.timeout else float("inf")
        self.held = {"stdout": bytearray(), "stderr": bytearray()}  # not sent yet
        self.written = {"stdout": 0, "stderr": 0}
        self.flags = {"timed_out": False, "truncated": False, "out_of_memory": False}
        self.violation = ""


class Child:
    """A process for requests, with its state."""

    def __init__(self, namespace: Namespace, number: int, selector: selectors.BaseSelector, pipes: dict[str, int]):
        self.namespace, self.number, self.key = namespace, number, ""
        self.stdin, self.requests = Feed(selector, pipes["stdin"]), Feed(selector, pipes["requests"])
        self.fds = {pipes[name]: name for name in ("stdout", "stderr", "reports")}
        self.report = Report()
        self.job: Job | None = None  # the current request; a context has none between cells
        self.context = False
        self.cells = 0  # number of cells so far
        self.words: list[str] = []  # first words of a command
        self.begun = time.monotonic()
        self.pid = 0
        self.pid_requests: list[int] = []  # requests that wait for its pid
        self.status: int | None = None

    def tell(self, number: int, message: Start | Cell | Resize) -> None:
        """Send a request to the process."""
        self.requests.put(encode(number, message))


class Namespace:
    """A process namespace, as seen from outside.

    Args:
        pid: process id of its first process; 0 for the only namespace of a container.
        scratch: descriptor of its scratch folder, to measure its size.
    """

    def __init__(self, connection: socket.socket, pid: int, scratch: int | None = None):
        self.connection, self.pid, self.scratch = connection, pid, scratch
        self.pidfd = os.pidfd_open(pid) if pid else None
        self.children: dict[int, Child] = {}
        self.waiting: Child | None = None  # forked ahead of need
        self._next = 1

    def fork(self, selector: selectors.BaseSelector, **how: bool) -> Child:
        """Fork a process, which waits for its request.

        Args:
            how: ``once``, with a ``terminal``, or ``trusted``.
        """
        pipes = {name: os.pipe() for name in ("stdin", "stdout", "stderr", "requests", "reports")}
        inner = [pipes[name][0 if name in ("stdin", "requests") else 1] for name in pipes]
        outer = {name: pipes[name][1 if name in ("stdin", "requests") else 0] for name in pipes}
        for name in ("stdin", "stdout", "stderr"):
            os.fchmod(pipes[name][0], 0o666)  # code's user may open /dev/stdin
        for name in ("stdout", "stderr", "reports"):
            os.set_blocking(outer[name], False)
        child = self.children[self._next] = Child(self, self._next, selector, outer)
        self.order([*inner], fork=self._next, **how)
        self._next += 1
        for fd in inner:
            os.close(fd)
        return child

    def order(self, descriptors: list[int] | None = None, **message: Any) -> None:
        """Send an order to the namespace's first process; its end is handled elsewhere."""
        with contextlib.suppress(OSError):
            socket.send_fds(self.connection, [json.dumps(message).encode()], descriptors or [])

    def signal(self, child: Child, number: int, group: bool) -> None:
        """Send a signal to a process, or to its whole session."""
        self.order(signal=child.number, number=int(number), group=group)

    def end(self) -> None:
        """Kill all processes of the namespace, in a container all that run code."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, 9)
        else:
            self.order(kill_all=True)

    def close(self) -> None:
        """Release the descriptors of a namespace that has ended."""
        self.connection.close()
        for fd in (self.pidfd, self.scratch):
            if fd is not None:
                os.close(fd)
        self.pidfd = self.scratch = None


class LimitEnforcer:
    """The part of a kernel that enforces limits.

    Args:
        idle_seconds: maximum processor time of background work between requests.
    """

    def __init__(self, monitor: ResourceMonitor, idle_seconds: float):
        self.monitor = monitor
        self.idle_seconds = self._idle_left = idle_seconds
        self._idle_at: tuple[float, float] | None = None  # time and processor time of the last check
        self.namespaces: list[Namespace] = []
        self.shared: Namespace | None = None
        self._look_at = self._looked = self._lower_at = 0.0
        self._paused_at: float | None = None
        self._ending = False  # true while everything in the shared namespace is being killed

    def _on_namespace(self, namespace: Namespace) -> bool:
        raise NotImplementedError

    def _on_request_done(self) -> None:
        """Handle the end of a request. If no other is running, limit background work from now on."""
        if not self._busy():
            self.monitor.restore_priority()
            self._look_at = min(self._look_at, time.monotonic() + IDLE_BEGINS)

    def _on_request_start(self, now: float) -> None:
        """Handle the start of a request: schedule a check, late enough not to delay a short run."""
        self.monitor.killed()  # ignore earlier kills
        if self._idle_at is not None:
            self._limit_idle_work(now)
            self._idle_at = None
        soon = now + WATCH_INTERVAL / 2
        if self._look_at > soon or now - self._looked < IDLE_INTERVAL / 4 or self.shared is None:
            self._look_at = soon if self._look_at <= now else min(self._look_at, soon)

    def _resume_all(self) -> None:
        """Resume after a pause, and extend deadlines by it."""
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

    def _seconds_until_check(self) -> float | None:
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
                        if isinstance(child.job.request, Cell) and not child.job.flags["timed_out"]:
                            child.job.deadline = now + GRACE  # so that a context can react and keep its state
                            child.namespace.signal(child, signal.SIGINT, False)
                        else:
                            child.job.deadline = float("inf")
                            self._stop(child)
                        child.job.flags["timed_out"] = True
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
            self._limit_idle_work(now)
        self._look_at, self._looked = time.monotonic() + wait, now

    def _limit_idle_work(self, now: float) -> None:
        """Limit background work to the processor time of a request, plus a tenth of the time that passes."""
        seconds, before = self.monitor.cpu_seconds(), self._idle_at
        self._idle_at = (now, seconds)
        if before is not None:
            left = self._idle_left - (seconds - before[1]) + _IDLE_SHARE * (now - before[0])
            self._idle_left = min(left, self.idle_seconds)
        if self._idle_left < 0:
            self._idle_left = self.idle_seconds
            self._stop_all()
            self._wait_until_ended()

    def _out_of_memory(self) -> None:
        for namespace in self.namespaces:
            for child in namespace.children.values():
                if child.job:
                    child.job.flags["out_of_memory"] = True
        self._stop_all()
        self._wait_until_ended()

    def _wait_until_ended(self) -> None:
        """Wait for killed processes, so that the next request neither reaches one nor is charged for its memory."""
        until = time.monotonic() + 2.5
        while self.shared is not None and self._ending and (left := until - time.monotonic()) > 0:
            if select.select([self.shared.connection], [], [], left)[0] and not self._on_namespace(self.shared):
                break  # the end of the namespace is handled elsewhere

    def _stop(self, child: Child) -> None:
        """Kill a process and its session, or the whole namespace of a run."""
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
