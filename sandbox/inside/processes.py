"""The kernel's side of what runs: namespaces, the processes in them, and the requests that they serve."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rollenv.sandbox.inside.protocol import Cell, Resize, Start, encode
from rollenv.sandbox.inside.report import Report

Json = dict[str, Any]

#: Bytes that may wait for a process to read them before a sender has to wait.
HIGH_WATER = 1 << 20


class Feed:
    """Writes to a pipe as it takes it, and never waits for it."""

    def __init__(self, selector: selectors.BaseSelector, fd: int):
        self.selector, self.fd = selector, fd
        self.waiting = bytearray()
        self.closing = self.closed = False
        self.answers: deque[Callable[[bool], None]] = deque()
        os.set_blocking(fd, False)

    def put(self, data: bytes, close: bool = False, then: Callable[[bool], None] | None = None) -> None:
        """Write; ``then`` is called once there is namespace for more: with whether it was taken."""
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
        """Write what the pipe takes now."""
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
        """Let go of the pipe; what waits was not taken."""
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
        self.seen = {"stdout": 0, "stderr": 0}
        self.flags = {"timed_out": False, "truncated": False, "out_of_memory": False}
        self.violation = ""


class Child:
    """A process that was asked for, and what is known of it."""

    def __init__(self, namespace: Namespace, number: int, selector: selectors.BaseSelector, pipes: dict[str, int]):
        self.namespace, self.number, self.key = namespace, number, ""
        self.stdin, self.requests = Feed(selector, pipes["stdin"]), Feed(selector, pipes["requests"])
        self.fds = {pipes[name]: name for name in ("stdout", "stderr", "reports")}
        self.report = Report()
        self.job: Job | None = None  # what is being served; a context has none between cells
        self.context = False
        self.cells = 0  # how many it was given
        self.words: list[str] = []  # of a command
        self.begun = time.monotonic()
        self.pid = 0
        self.asked: list[int] = []  # requests that wait for its number
        self.status: int | None = None

    def tell(self, number: int, message: Start | Cell | Resize) -> None:
        """Send what it shall do."""
        self.requests.put(encode(number, message))


class Namespace:
    """A place for processes.

    Args:
        pid: of that process; 0 for the one namespace of a container.
        scratch: a descriptor of its scratch folder, for looking at how full it is.
    """

    def __init__(self, connection: socket.socket, pid: int, scratch: int | None = None):
        self.connection, self.pid, self.scratch = connection, pid, scratch
        self.pidfd = os.pidfd_open(pid) if pid else None
        self.children: dict[int, Child] = {}
        self.waiting: Child | None = None  # forked ahead of need
        self._next = 1

    def fork(self, selector: selectors.BaseSelector, **how: bool) -> Child:
        """Ask for a process. It waits for its terms.

        Args:
            how: ``once``, at a ``terminal``, or ``trusted``.
        """
        pipes = {name: os.pipe() for name in ("stdin", "stdout", "stderr", "requests", "reports")}
        inner = [pipes[name][0 if name in ("stdin", "requests") else 1] for name in pipes]
        outer = {name: pipes[name][1 if name in ("stdin", "requests") else 0] for name in pipes}
        for name in ("stdout", "stderr", "reports"):
            os.set_blocking(outer[name], False)
        child = self.children[self._next] = Child(self, self._next, selector, outer)
        self.order([*inner], fork=self._next, **how)
        self._next += 1
        for fd in inner:
            os.close(fd)
        return child

    def order(self, descriptors: list[int] | None = None, **message: Any) -> None:
        """Tell the namespace's first process what to do; if it has ended, that is noticed elsewhere."""
        with contextlib.suppress(OSError):
            socket.send_fds(self.connection, [json.dumps(message).encode()], descriptors or [])

    def signal(self, child: Child, number: int, group: bool) -> None:
        """Send a signal to a process, or to its whole session."""
        self.order(signal=child.number, number=int(number), group=group)

    def end(self) -> None:
        """Kill everything in it, or at least everything that runs code."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, 9)
        else:
            self.order(kill_all=True)

    def close(self) -> None:
        """Release everything held for a namespace that has ended."""
        self.connection.close()
        for fd in (self.pidfd, self.scratch):
            if fd is not None:
                os.close(fd)
        self.pidfd = self.scratch = None
