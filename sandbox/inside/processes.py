"""The kernel's view of namespaces, their processes and requests."""

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

from rollenv.sandbox.inside.protocol import Report, Resize, RunCell, RunProgram, Start, encode

Json = dict[str, Any]

#: Bytes of unread input above which a sender must wait.
HIGH_WATER = 1 << 20


class InputFeed:
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

    def __init__(self, number: int, request: Start | RunCell):
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
        self.stdin, self.requests = InputFeed(selector, pipes["stdin"]), InputFeed(selector, pipes["requests"])
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

    def tell(self, number: int, message: Start | RunCell | Resize) -> None:
        """Send a request to the process."""
        self.requests.put(encode(number, message))

    def stop(self) -> None:
        """Kill the process and its session, or the whole namespace of a run."""
        if self.job is not None and isinstance(self.job.request, RunProgram):
            self.namespace.end()
        else:
            self.namespace.signal(self, signal.SIGKILL, True)


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
        """Fork a process, which waits for its request. ``how``: ``once``, with a ``terminal``, or ``trusted``."""
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


class Namespaces:
    """All namespaces of a sandbox, and the orders that concern several of them.

    Args:
        receive: handles a message of a namespace's first process; returns whether there was one.
    """

    def __init__(self, receive: Callable[[Namespace], bool]):
        self._receive = receive
        self.all: list[Namespace] = []
        self.shared: Namespace | None = None  # of contexts and commands; each run may have its own
        self.paused_at: float | None = None
        self.ending = False  # true while everything in the shared namespace is being killed

    def jobs(self) -> list[Job]:
        """Return the running requests."""
        return [child.job for namespace in self.all for child in namespace.children.values() if child.job is not None]

    def scratches(self) -> list[int]:
        """Return the descriptors of the scratch folders."""
        return [namespace.scratch for namespace in self.all if namespace.scratch is not None]

    def resume(self) -> None:
        """Resume after a pause, and extend deadlines by it."""
        began, self.paused_at = self.paused_at, None
        if began is None or self.shared is None:
            return
        for child in self.shared.children.values():
            if child.job is not None:
                child.job.deadline += time.monotonic() - began
        self.shared.order(signal_all=int(signal.SIGCONT))

    def end_all(self) -> None:
        """Kill everything, and wait for it, so that the next request neither reaches a process nor pays its memory."""
        for namespace in self.all:
            if namespace is self.shared:
                self.ending = True
                namespace.order(end_all=0)
            else:
                namespace.end()
        until = time.monotonic() + 2.5
        while self.shared is not None and self.ending and (left := until - time.monotonic()) > 0:
            if select.select([self.shared.connection], [], [], left)[0] and not self._receive(self.shared):
                break  # the end of the namespace is handled elsewhere
