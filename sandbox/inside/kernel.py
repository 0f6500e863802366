"""The program inside a sandbox, which manages processes and relays their input and output.

It is process 1 of its pid namespace: when it ends, everything in the sandbox ends. It needs only the standard library.
:mod:`jail` and ``container`` start it. It does not fork processes that run code, because its memory contains code:
:mod:`namespace_init` does.

What is bounded, and where: time, memory and work between requests in :mod:`limits` (with :mod:`monitor`); processes,
files and address space by the limits that :mod:`child` sets; the output of a run here (``Limits.output_bytes``, but for
files and terminals); results in :mod:`interpreter`, again in :mod:`protocol`; what the host reads in its ``worker``.

Its messages are those of :mod:`protocol`. The sandbox ends with the channel.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import Any

from rollenv.sandbox.inside import protocol
from rollenv.sandbox.inside.limits import LimitEnforcer
from rollenv.sandbox.inside.monitor import ResourceMonitor
from rollenv.sandbox.inside.processes import Child, Job, Namespace, Namespaces
from rollenv.sandbox.inside.protocol import Failed, Value, Violation, write_all

#: Maximum bytes of one message; a larger one ends the channel.
_MAX_CHANNEL_MESSAGE = 64 << 20
#: Bytes of output that are collected before they are sent.
_HELD = 1 << 16
#: Maximum words of a command, and characters of each, in a list of processes.
_SHOWN = 100

Json = dict[str, Any]


class Kernel:
    """Serves one channel until it ends.

    Args:
        new_namespace: creates a namespace; None if there is only ``common``.
        common: the one namespace of a container.
    """

    def __init__(
        self,
        inward: int,
        outward: int,
        *,
        new_namespace: Callable[[], Namespace] | None,
        common: Namespace | None,
        monitor: ResourceMonitor,
        idle_seconds: float,
    ):
        self.inward, self.outward = inward, outward
        self.new_namespace, self.monitor = new_namespace, monitor
        self.namespaces = Namespaces(self._on_namespace)
        self.namespaces.shared = common
        self.limits = LimitEnforcer(self.namespaces, monitor, idle_seconds)
        self.only_namespace = False  # true if the shared namespace cannot be replaced
        self.spare: Namespace | None = None
        self.named: dict[str, Child] = {}
        self.inbox = bytearray()
        self._handlers: dict[type, Callable[[int, Any], Any]] = {
            protocol.RunCell: self._cell,
            protocol.Signal: self._signal,
            protocol.Acknowledge: self._acknowledge,
            protocol.Resize: self._resize,
            protocol.GetPid: self._get_pid,
            protocol.GetMemory: self._get_memory,
            protocol.GetMetrics: self._get_metrics,
            protocol.ListProcesses: self._list_processes,
            protocol.Pause: self._pause,
            protocol.Resume: self._resume,
            protocol.EndAll: self._end_all,
        }
        self.selector = selectors.DefaultSelector()
        self.selector.register(inward, selectors.EVENT_READ, self._on_channel)
        if common is not None:
            self._join(common)

    def serve(self) -> None:
        """Serve requests until the channel ends."""
        with contextlib.suppress(EOFError):
            while True:
                for key, _ in self.selector.select(self.limits.seconds_until_check()):
                    now = self.selector.get_map().get(key.fd)
                    if now is not None and now.data is key.data:  # the descriptor may have been closed and reused
                        key.data()
                self.limits.enforce()
        for namespace in self.namespaces.all:
            namespace.end()

    # -- the channel -------------------------------------------------------------------------------------------------

    def _on_channel(self) -> None:
        try:
            data = os.read(self.inward, 1 << 20)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        self.inbox += data
        while len(self.inbox) >= 4:
            size = 4 + int.from_bytes(self.inbox[:4], "big")
            if size > _MAX_CHANNEL_MESSAGE:
                raise EOFError
            if len(self.inbox) < size:
                return
            head = json.loads(self.inbox[4:size])
            end = size + head["bytes"]
            if len(self.inbox) < end:
                return
            payload = bytes(self.inbox[size:end])
            del self.inbox[:end]
            self._dispatch(head["id"], protocol.from_json(head), payload)

    def _dispatch(self, number: int, request: Any, payload: bytes) -> None:
        """Serve a request of one of three kinds.

        A ``Start`` is given to a process, and ``WriteInput`` adds to its input: both are answered later, by
        :meth:`_answer` when the process has ended (a context: when it is ready), and when there is room for more input.
        All others have a handler, which returns the answer, or None where a later event sends it. An exception of any
        of them is the answer ``Failed``; only EOFError, the end of the channel, ends the kernel.
        """
        answer: Any = None
        try:
            starting = isinstance(request, (protocol.Start, protocol.RunCell))
            if starting and not isinstance(request, protocol.PackMachine):  # which works during a pause
                self.limits.on_request_start()
                if self.namespaces.paused_at is not None:
                    raise OSError(errno.ESHUTDOWN, "the sandbox is paused; resume() it first")
            if isinstance(request, protocol.Start):
                self._start(number, request, payload)
            elif isinstance(request, protocol.WriteInput):
                self._write_input(number, request, payload)
            else:
                answer = self._handlers[type(request)](number, request)
        except EOFError:
            raise
        except Exception as error:
            answer = Failed((isinstance(error, OSError) and error.errno) or errno.EINVAL, f"{error}")
        if answer is not None:
            self.send(number, answer)

    def send(self, number: int, message: Any, payload: bytes = b"") -> None:
        """Send an answer to the request with a number."""
        try:
            write_all(self.outward, protocol.encode(number, message, payload))
        except OSError:
            raise EOFError from None

    # -- requests ----------------------------------------------------------------------------------------------------

    def _start(self, number: int, request: protocol.Start, payload: bytes) -> None:
        """Send a request and the start of its input to a process."""
        if isinstance(request, protocol.OpenContext) and request.key in self.named:
            raise FileExistsError(errno.EEXIST, "there is a context of this name", request.key)
        if isinstance(request, protocol.PackMachine):
            child = self._fork(self._shared_namespace(), trusted=True)
        elif not isinstance(request, protocol.RunProgram):
            child = self._fork(self._shared_namespace(), terminal=isinstance(request, protocol.StartTerminal))
        elif self.new_namespace is None:
            child = self._take_waiting(self._shared_namespace(), once=False)
        else:
            namespace, self.spare = self.spare or self._new_namespace(), None  # it has a namespace of its own
            child = self._take_waiting(namespace, once=True)
        if isinstance(request, protocol.Command):
            child.words = [str(word)[:_SHOWN] for word in request.command[:_SHOWN]]
        child.context = isinstance(request, protocol.OpenContext)
        child.job, child.key = Job(number, request), request.key or f"request-{number}"
        self.named[child.key] = child
        child.tell(number, request)
        child.stdin.put(payload, close=request.last)

    def _write_input(self, number: int, request: protocol.WriteInput, payload: bytes) -> None:
        """Add to the input of a process; answer when there is room for the next piece."""

        def then(taken: bool) -> None:
            self.send(number, Value() if taken else Failed(errno.EPIPE, "its standard input is closed"))

        self._find(request.key).stdin.put(payload, close=request.last, then=then)

    def _prepare(self) -> None:
        """Prepare a namespace with a waiting process for the next run."""
        if self.new_namespace is None:
            home = self._shared_namespace()
            home.waiting = home.waiting or self._fork(home)
        elif self.spare is None:
            with contextlib.suppress(OSError):  # the next run reports the error
                self.spare = self._new_namespace()
                self.spare.waiting = self._fork(self.spare, once=True)

    def _cell(self, number: int, request: protocol.RunCell) -> None:
        child = self._find(request.key)
        if child.job is not None:
            raise BlockingIOError(errno.EBUSY, "the context is running other code", request.key)
        if child.report.unread or not child.context:
            child.namespace.signal(child, signal.SIGKILL, True)
            raise ProcessLookupError(errno.ESRCH, "it is not running", request.key)
        child.report.clear()
        child.cells += 1
        child.job, request.number = Job(number, request), number
        child.tell(number, request)

    def _signal(self, number: int, request: protocol.Signal) -> Value:
        child, name = self._find(request.key), request.signal
        if name != signal.SIGINT or child.job is not None:
            child.namespace.signal(child, name, name == signal.SIGKILL)
        if name == signal.SIGKILL:
            self.named.pop(request.key, None)
        return Value()

    def _acknowledge(self, number: int, request: protocol.Acknowledge) -> Value:
        child = self._find(request.key)
        if child.job is not None:
            child.job.unacknowledged -= request.taken
            if child.job.unacknowledged < child.job.window:
                self._listen(child)
        return Value()

    def _resize(self, number: int, request: protocol.Resize) -> Value:
        child = self._find(request.key)
        if child.job is None or not isinstance(child.job.request, protocol.StartTerminal):
            raise ProcessLookupError(errno.ESRCH, "it is at no terminal", request.key)
        child.tell(number, request)
        return Value()

    def _get_pid(self, number: int, request: protocol.GetPid) -> Value | None:
        child = self._find(request.key)
        if child.pid:
            return Value({"pid": child.pid})
        child.pid_requests.append(number)
        return None

    def _get_memory(self, number: int, request: protocol.GetMemory) -> Value:
        return Value({"used": self.monitor.used(self.namespaces.scratches(), True)})

    def _get_metrics(self, number: int, request: protocol.GetMetrics) -> Value:
        shared, disk_used = self.namespaces.shared, 0
        if shared is not None and shared.scratch is not None:
            disk = os.fstatvfs(shared.scratch)
            disk_used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        return Value(
            {
                "cpu_seconds": self.monitor.cpu_seconds(),
                "memory_used": self.monitor.used(self.namespaces.scratches(), True),
                "disk_used": disk_used,
                "processes": len(self.monitor.pids()),
            }
        )

    def _list_processes(self, number: int, request: protocol.ListProcesses) -> Value:
        """List the contexts and commands with their process ids inside."""
        now, found = time.monotonic(), []
        for key, child in self.named.items():
            if child.pid and child.namespace is self.namespaces.shared and (child.context or child.words):
                found.append({"key": key, "pid": child.pid, "seconds": now - child.begun, "words": child.words})
        return Value({"processes": found})

    def _pause(self, number: int, request: protocol.Pause) -> Value:
        if self.namespaces.paused_at is None:
            self.namespaces.paused_at = time.monotonic()
            self._shared_namespace().order(signal_all=int(signal.SIGSTOP))
        return Value()

    def _resume(self, number: int, request: protocol.Resume) -> Value:
        self.namespaces.resume()
        return Value()

    def _end_all(self, number: int, request: protocol.EndAll) -> None:
        self._shared_namespace().order(end_all=number)

    def _find(self, key: str) -> Child:
        if key not in self.named:
            raise ProcessLookupError(errno.ESRCH, "it is not running", key)
        return self.named[key]

    # -- namespaces --------------------------------------------------------------------------------------------------

    def _shared_namespace(self) -> Namespace:
        if self.namespaces.shared is None:
            self.namespaces.shared = self._new_namespace()
        return self.namespaces.shared

    def _new_namespace(self) -> Namespace:
        assert self.new_namespace is not None
        namespace = self.new_namespace()
        self.monitor.own.add(namespace.pid)
        self._join(namespace)
        return namespace

    def _join(self, namespace: Namespace) -> None:
        self.namespaces.all.append(namespace)
        namespace.connection.setblocking(False)
        self.selector.register(namespace.connection, selectors.EVENT_READ, lambda: self._on_namespace(namespace))
        if namespace.pidfd is not None:
            self.selector.register(namespace.pidfd, selectors.EVENT_READ, lambda: self._on_namespace_end(namespace))

    def _fork(self, namespace: Namespace, **how: bool) -> Child:
        child = namespace.fork(self.selector, **how)
        self._listen(child)
        return child

    def _take_waiting(self, namespace: Namespace, *, once: bool) -> Child:
        """Return the process that waits in a namespace for its program, or a new one."""
        child, namespace.waiting = namespace.waiting, None
        return child or self._fork(namespace, once=once)

    def _listen(self, child: Child) -> None:
        for fd in child.fds:
            if fd not in self.selector.get_map():
                self.selector.register(fd, selectors.EVENT_READ, lambda fd=fd: self._on_output(child, fd))

    def _on_namespace(self, namespace: Namespace) -> bool:
        """Handle a message of a namespace's first process; return whether there was one."""
        try:
            data = namespace.connection.recv(4096)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(namespace.connection)
            if namespace.pidfd is None:
                raise EOFError  # the only namespace has ended
            return False
        message = json.loads(data)
        if "cleared" in message:
            for child in list(namespace.children.values()):
                if child.status is not None:
                    self._finish(child)
            self._prepare()
        elif "all_ended" in message:
            self.namespaces.ending = False
            if message["all_ended"]:
                self.send(message["all_ended"], Value())
        elif sender := namespace.children.get(message["number"]):
            if "error" in message:
                sender.report.failed = Failed(errno.EAGAIN, message["error"])
                self._on_child_end(sender, 126 << 8)
            elif "status" in message:
                self._on_child_end(sender, message["status"])
            else:
                sender.pid = message["pid"]
                for number in sender.pid_requests:
                    self.send(number, Value({"pid": sender.pid}))
                sender.pid_requests.clear()
        return True

    def _on_child_end(self, child: Child, status: int) -> None:
        """Handle the end of a process. A run ends with its whole namespace."""
        child.status = status
        if child.job is None or not isinstance(child.job.request, protocol.RunProgram):
            self._finish(child)
        elif child.namespace.pidfd is None:
            child.namespace.order(clear=True)

    def _on_namespace_end(self, namespace: Namespace) -> None:
        """Handle the end of a namespace."""
        while self._on_namespace(namespace):
            pass
        for fileobj in (namespace.connection, namespace.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(fileobj)  # type: ignore[arg-type]
        if namespace is self.namespaces.shared:
            if self.only_namespace:
                raise EOFError
            self.namespaces.shared = None
        if namespace is self.spare:
            self.spare = None
        self.namespaces.all.remove(namespace)
        self.monitor.own.discard(namespace.pid)
        again = any(
            child.job and isinstance(child.job.request, protocol.RunProgram) and child.job.request.again
            for child in namespace.children.values()
        )
        for child in list(namespace.children.values()):
            if child.status is None:
                child.status = 9
            self._finish(child)
        namespace.close()
        if again:
            self._prepare()

    # -- output ------------------------------------------------------------------------------------------------------

    def _on_output(self, child: Child, fd: int) -> bool:
        """Read available output; return whether there may be more."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        name = child.fds[fd]
        if not data:
            self._close_pipe(child, fd)
            return False
        if name == "reports":
            self._on_report(child, data)
        elif child.job is not None:
            self._collect(child, child.job, name, data)
        return True

    def _close_pipe(self, child: Child, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self.selector.unregister(fd)
        os.close(fd)
        del child.fds[fd]

    # A request is answered once, by :meth:`_answer`, in one of four ways: a cell, when its report says that it is done;
    # a new context, when its report says that it is ready; a program, when its process has ended and its output is
    # read (:meth:`_finish`); and any of them, when a report breaks the protocol: its process is stopped, and its end
    # is the answer. A process whose request was answered goes on only if it is a context.

    def _on_report(self, child: Child, data: bytes) -> None:
        report, job = child.report, child.job
        try:
            if job is None or job.violation:
                raise Violation("no request was running")
            report.take(data)
            if report.done is not None and (not isinstance(job.request, protocol.RunCell) or report.done != job.number):
                raise Violation("it is of another cell")
        except Violation as error:
            if job is not None:
                job.violation = job.violation or f"its report was not in order: {error}"
            child.stop()
            return
        if job.request.show and job.shown < report.whole:
            # Forward results as they arrive, after earlier output.
            for fd in [fd for fd in child.fds if child.fds[fd] != "reports"]:
                self._on_output(child, fd)
            for result in report.results[job.shown : report.whole]:
                self.send(job.number, protocol.ShownResult(result))
            job.shown = report.whole
        if isinstance(job.request, protocol.OpenContext) and report.ready:
            self._answer(child, job)
        elif report.done is not None:
            self._drain(child)
            self._answer(child, job)

    def _collect(self, child: Child, job: Job, name: str, data: bytes) -> None:
        left = job.request.output_bytes - job.written[name]
        job.written[name] += len(data)
        job.held[name] += data[: max(left, 0)]
        if job.request.stream or len(job.held[name]) >= _HELD:
            self._send_held(job, name)
        job.unacknowledged += len(data)
        if job.window and job.unacknowledged >= job.window:
            for fd in child.fds:
                if child.fds[fd] != "reports" and fd in self.selector.get_map():
                    self.selector.unregister(fd)
        if len(data) > left and not job.flags["truncated"]:
            job.flags["truncated"] = True
            child.stop()

    def _send_held(self, job: Job, name: str) -> None:
        if data := bytes(job.held[name]):
            job.held[name].clear()
            self.send(job.number, protocol.OutputPiece(name), data)

    def _drain(self, child: Child) -> None:
        """Read output from before the end; other processes may hold the pipes open and continue to write."""
        for fd in [fd for fd in child.fds if child.fds[fd] != "reports" or child.status is not None]:
            for _ in range(1 << 10):
                if fd not in child.fds or not self._on_output(child, fd):
                    break

    def _finish(self, child: Child) -> None:
        """Answer the request of an ended process and release it."""
        job = child.job
        self._drain(child)
        for fd in list(child.fds):
            self._close_pipe(child, fd)
        child.namespace.children.pop(child.number, None)
        if child.namespace.waiting is child:
            child.namespace.waiting = None
        if self.named.get(child.key) is child:
            del self.named[child.key]
        if child.job is not None and job is not None:
            self._answer(child, job)
        for number in child.pid_requests:
            self.send(number, Failed(errno.ESRCH, "it has ended"))
        child.pid_requests.clear()
        child.stdin.close()
        child.requests.close()

    def _answer(self, child: Child, job: Job) -> None:
        child.job = None
        report, status = child.report, child.status
        self.limits.on_request_done()
        if self.monitor.killed():
            job.flags["out_of_memory"] = True
            self.limits.out_of_memory()
        for name in job.held:
            self._send_held(job, name)
        if report.failed is not None and not report.ready and not isinstance(job.request, protocol.RunCell):
            self.send(job.number, report.failed)
            return
        code = None if status is None else os.waitstatus_to_exitcode(status)
        done = protocol.Finished(
            results=report.results,
            error=report.error,
            exit_code=code if code is None or code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            seconds=time.monotonic() - job.started,
            process_ended=status is not None,
            count=child.cells or None,
            **job.flags,
        )
        if job.violation:
            done.results, done.error = [], {"name": "ReportViolation", "value": job.violation, "traceback": ""}
        self.send(job.number, done)
