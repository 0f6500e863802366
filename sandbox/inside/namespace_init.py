"""The processes that fork others. They never see code, input or output.

Code runs in a *namespace*: a pid namespace with its own /proc, ipc and scratch folder. Its first process
(:class:`NamespaceInit`) forks processes for the kernel and reaps them; when it ends, the whole namespace ends. The
:func:`zygote`, forked before the first request, forks namespaces.

A container has a single namespace, which is cleared instead of ended.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rollenv.sandbox.inside import child, linux, terminal

Json = dict[str, Any]

#: Maximum seconds to wait for killed processes.
_ENDING = 2.0


class Prepared(NamedTuple):
    """A namespace that is ready for its first process."""

    harden: Callable[[], None]
    scratch: str
    written: int
    """Descriptor of the folder of all written files."""
    machine: bool = False
    """True for a machine, where background processes outlive their command and ``written`` can be archived."""


def zygote(
    connection: socket.socket, own: int, build: Callable[[], Prepared], part: Callable[[], None] | None = None
) -> None:
    """Fork a namespace for every received socket.

    Args:
        own: descriptor of this process's pid namespace.
        part: called in the namespace of a single run, to isolate it further.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, 16, 1)
        if not data:
            os._exit(0)
        theirs = socket.socket(fileno=descriptors[0])
        answer: Json
        try:
            linux.unshare(linux.CLONE_NEWPID)
            pid = os.fork()
            if pid == 0:
                connection.close()
                os.close(own)
                _run_init(theirs, build, part)
            linux.enter_pid_namespace(own)
            answer = {"pid": pid}
        except OSError as error:
            answer = {"error": str(error)}
        theirs.close()
        connection.send(json.dumps(answer).encode())


def _run_init(connection: socket.socket, build: Callable[[], Prepared], part: Callable[[], None] | None) -> None:
    try:
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC)
        built = build()
        namespace = NamespaceInit(
            connection, built.harden, built.scratch, part=part, machine=built.written if built.machine else None
        )
        socket.send_fds(connection, [b'{"ready": 1}'], [built.written])
        if not built.machine:
            os.close(built.written)
        namespace.serve()
    except OSError as error:
        connection.send(json.dumps({"error": str(error)}).encode())
    finally:
        os._exit(0)


class NamespaceInit:
    """The first process of a namespace.

    Args:
        harden: called in every fork before it receives anything.
        kill_all: signals all processes that run code; by default all in the pid namespace.
        wipe: empties the writable folders of a namespace that is reused.
        part: called before the fork of a namespace's only run.
        machine: descriptor of the written files of a machine.
    """

    def __init__(
        self,
        connection: socket.socket,
        harden: Callable[[], None],
        scratch: str,
        kill_all: Callable[[int], None] | None = None,
        wipe: Callable[[], None] | None = None,
        part: Callable[[], None] | None = None,
        machine: int | None = None,
    ):
        self.machine = machine
        self.connection, self.harden, self.scratch = connection, harden, scratch
        self.kill_all, self.wipe, self.part = kill_all or _kill_all, wipe, part
        self.numbers: dict[int, int] = {}  # pid: number
        self.once = False
        self.wakeup, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # process 1 ignores signals without a handler
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(end, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Handle orders until the kernel closes the connection."""
        poll = select.poll()
        poll.register(self.connection.fileno(), select.POLLIN)
        poll.register(self.wakeup, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self.wakeup:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wakeup, 4096)
                    self._reap(os.WNOHANG)
                else:
                    self._handle_order()

    def _handle_order(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self.connection, 4096, 5)
        if not data:
            os._exit(0)
        order = json.loads(data)
        if "fork" in order:
            self._fork(order["fork"], descriptors, order)
        elif "signal" in order:
            for pid in [pid for pid, number in self.numbers.items() if number == order["signal"]]:
                with contextlib.suppress(OSError):  # alone, too: right after its fork it leads no session yet
                    os.kill(pid, order["number"])
                if order["group"]:
                    _end_session(pid, order["number"])
        elif "kill_all" in order:
            self.kill_all(signal.SIGKILL)
        elif "end_all" in order:
            # Kill everything, and wait until its memory is freed.
            until = time.monotonic() + _ENDING
            self.kill_all(signal.SIGKILL)
            while self._reap(os.WNOHANG) and time.monotonic() < until:
                time.sleep(0.001)
                self.kill_all(signal.SIGKILL)
            self._send(all_ended=order["end_all"])
        elif "signal_all" in order:
            self.kill_all(order["signal_all"])
        elif "clear" in order:
            # Remove all traces of the run.
            self.kill_all(signal.SIGKILL)
            self._reap(0)
            if self.wipe is not None:
                self.wipe()
            self._send(cleared=True)

    def _fork(self, number: int, descriptors: list[int], order: Json) -> None:
        once, trusted = bool(order.get("once")), bool(order.get("trusted")) and self.machine is not None
        try:
            descriptors += terminal.open_pair() if order.get("terminal") else ()
            descriptors += [os.dup(self.machine)] if trusted and self.machine is not None else []
            if once and self.part is not None:
                self.part()
            pid = os.fork()
        except OSError as error:
            pid = -1
            self._send(number=number, error=str(error))
        if pid == 0:
            child.main(descriptors, (lambda: None) if trusted else self.harden, self.scratch)
        for fd in descriptors:
            os.close(fd)
        if pid > 0:
            self.numbers[pid] = number
            self.once = once
            self._send(number=number, pid=pid)

    def _reap(self, options: int) -> bool:
        """Reap ended processes, including orphans; return whether there are other children."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, options))[0]:
                pid, status = ended
                if (number := self.numbers.pop(pid, None)) is None:
                    continue
                if not self.once and self.machine is None:
                    _end_session(pid, signal.SIGKILL)
                self._send(number=number, status=status)
                if self.once:
                    os._exit(0)
            return True
        return False

    def _send(self, **message: Any) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(json.dumps(message).encode())


def _end_session(leader: int, number: int) -> None:
    """Signal a process, its group, and other groups of its session."""
    with contextlib.suppress(OSError):
        os.killpg(leader, number)
    with contextlib.suppress(OSError):
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]:
            with contextlib.suppress(OSError):
                if pid != leader and os.getsid(pid) == leader:
                    os.kill(pid, number)


def _kill_all(number: int) -> None:
    """Signal all processes except the first. Forks cannot escape, because they fail while the signal is pending."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)
