"""The program inside a sandbox: it starts processes, runs code in forks of itself, and carries bytes in and out.

It is process 1 of its pid namespace: when it ends, everything in the sandbox ends, and ``kill(-1)`` reaches everything
but itself. It needs the standard library alone. :mod:`jail` and ``container`` put it where it works.

Messages are JSON after four bytes of length. Requests carry ``id`` and ``op``; the answers to a request are any number
of ``{"id", "stream", "data"}`` and one ``{"id", "done": {...}}``. The channel's end is the sandbox's end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import io
import json
import os
import resource
import selectors
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

if __package__:
    from rollenv.sandbox.inside.files import FileOperations
    from rollenv.sandbox.inside.interpreter import MAX_REPORT, serve_cells, write_all
else:
    from files import FileOperations  # type: ignore[import-not-found,no-redef]
    from interpreter import MAX_REPORT, serve_cells, write_all  # type: ignore[import-not-found,no-redef]

#: Bytes of one message at most; what is larger ends the channel.
MAX_MESSAGE = 64 << 20
#: Seconds between looks at the memory that is in use.
WATCH_INTERVAL = 0.02
#: Seconds after which a run yields to younger ones.
YIELD_AFTER = 0.1
#: The nice value that it gets then: about a third of the share of a process that has none.
YIELD_TO = 5
#: Seconds that code has to react to an interrupt before it is killed.
GRACE = 0.5

Json = dict[str, Any]


def out_of_the_way(fd: int) -> int:
    """A copy of a descriptor above those that a fork arranges; the original is closed."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 128)
    os.close(fd)
    return high


class Child:
    """A process that was asked for, and what is known of it."""

    def __init__(self, key: str, request: Json, pid: int):
        self.key, self.request, self.pid = key, request, pid
        self.stdin: int | None = None
        self.to_send = b""
        self.requests: int | None = None  # cells go in here
        self.report = b""
        self.cell: Job | None = None  # the request being served; a context has none between cells
        self.fds: dict[int, str] = {}
        self.status: int | None = None


#: What a child gets when it is forked, and cannot change later.
_TERMS = ("memory_bytes", "file_bytes", "processes", "open_files", "cpu_seconds", "env", "cwd")


def _terms(request: Json) -> Json:
    return {name: request.get(name) for name in _TERMS}


class Job:
    """A request that is being served by a child."""

    def __init__(self, request: Json):
        self.id = request["id"]
        self.stream = bool(request.get("stream"))
        self.limit = int(request.get("output_bytes", 4 << 20))
        self.timeout = float(request.get("timeout") or 0)
        self.started = time.monotonic()
        self.deadline = self.started + self.timeout if self.timeout else float("inf")
        self.output = {"stdout": bytearray(), "stderr": bytearray()}
        self.seen = {"stdout": 0, "stderr": 0}
        self.flags = {"timed_out": False, "truncated": False, "out_of_memory": False}
        self.exclusive = bool(request.get("exclusive"))
        self.yields = False


class Kernel(FileOperations):
    """Serves one channel until it ends.

    Args:
        inward: a file descriptor that requests come from.
        outward: one that answers go to; may be the same.
        harden: called in every fork before anything foreign runs there.
        wipe: empties the scratch folder.
        scratch: where code starts, and what ``wipe`` empties.
        proc: whether /proc shows the processes of this sandbox alone.
    """

    def __init__(
        self,
        inward: int,
        outward: int,
        *,
        harden: Callable[[], None],
        wipe: Callable[[], None],
        scratch: str,
        proc: bool,
    ):
        self.inward, self.outward = inward, outward
        self.harden, self.wipe, self.scratch, self.proc = harden, wipe, scratch, proc
        self.children: dict[str, Child] = {}
        self.spare: Child | None = None
        self.selector = selectors.DefaultSelector()
        self.inbox = bytearray()
        self.wakeup, wakeup_end = os.pipe()
        for fd in (self.wakeup, wakeup_end):
            os.set_blocking(fd, False)
        # Process 1 gets no signal from inside that it has no handler for, so Python's own for Ctrl-C has to go.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
        self.selector.register(inward, selectors.EVENT_READ, self._on_channel)
        self.selector.register(self.wakeup, selectors.EVENT_READ, lambda: os.read(self.wakeup, 4096))

    def serve(self) -> None:
        """The loop. Returns when the channel has ended."""
        gc.collect()
        gc.freeze()
        try:
            while True:
                for key, _ in self.selector.select(self._patience()):
                    key.data()
                self._reap()
                self._enforce()
        except EOFError:
            self._kill_everything()

    def _patience(self) -> float | None:
        now = time.monotonic()
        running = [c.cell for c in self.children.values() if c.cell]
        if not running:
            return None
        left = min(job.deadline for job in running) - now
        return max(0.0, min(left, WATCH_INTERVAL if self.proc else left, 3600.0))

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
            size = int.from_bytes(self.inbox[:4], "big")
            if size > MAX_MESSAGE:
                raise EOFError
            if len(self.inbox) < 4 + size:
                return
            message = json.loads(self.inbox[4 : 4 + size])
            del self.inbox[: 4 + size]
            self._dispatch(message)

    def _dispatch(self, request: Json) -> None:
        try:
            answer = getattr(self, f"_op_{request['op']}")(request)
        except Exception as error:
            number = error.errno if isinstance(error, OSError) else None
            answer = {"failed": type(error).__name__, "message": str(error), "errno": number}
        if answer is not None:
            self.send({"id": request["id"], "done": answer})

    def send(self, message: Json) -> None:
        """Put a message on the channel."""
        data = json.dumps(message).encode()
        try:
            write_all(self.outward, len(data).to_bytes(4, "big") + data)
        except OSError:
            raise EOFError from None

    # -- operations --------------------------------------------------------------------------------------------------

    def _op_ping(self, request: Json) -> Json:
        return {"pid": os.getpid(), "python": sys.version.split()[0], "processes": len(self.children)}

    def _op_run(self, request: Json) -> None:
        """A fresh fork runs one program: the spare one if it has the same limits."""
        child, self.spare = self.spare, None
        if child is not None and (child.status is not None or _terms(child.request) != _terms(request)):
            self._kill(child)
            child = None
        if child is None:
            child = self._fork(f"run-{request['id']}", request, lambda c: serve_cells(c[0], c[1], once=True))
        child.request, child.cell = request, Job(request)
        self._send_cell(child, request["code"])
        self._feed(child, request.get("stdin", ""), close=True)

    def _make_spare(self, request: Json) -> None:
        """Fork for the next run after the answer to this one, when nothing foreign is left that could touch it."""
        terms = {**_terms(request), "op": "run", "id": 0}
        self.spare = self._fork("spare", terms, lambda c: serve_cells(c[0], c[1], once=True))

    def _op_command(self, request: Json) -> Json | None:
        """A fork becomes another program. In the background its pid comes at once, and its end is a later message."""
        command, path = request["command"], (request.get("env") or {}).get("PATH", "/usr/local/bin:/usr/bin:/bin")
        if shutil.which(command[0], path=path) is None:
            raise FileNotFoundError(errno.ENOENT, "no such program in the sandbox", command[0])

        def become(_: tuple[int, int]) -> None:
            for number in (signal.SIGINT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(command[0], command, os.environ)

        child = self._fork(request.get("key") or f"command-{request['id']}", request, become)
        child.cell = Job(request)
        self._feed(child, request.get("stdin", ""), close=not request.get("keep_stdin"))
        if request.get("background"):
            self.send({"id": request["id"], "pid": child.pid})
        return None

    def _op_open(self, request: Json) -> Json:
        """A fork that stays and runs cell after cell."""
        if request["key"] in self.children:
            raise FileExistsError(errno.EEXIST, "there is a context of this name", request["key"])
        child = self._fork(request["key"], request, lambda c: serve_cells(c[0], c[1], once=False))
        self._close_stdin(child)
        return {"pid": child.pid}

    def _op_cell(self, request: Json) -> None:
        child = self._named(request)
        if child.cell is not None:
            raise BlockingIOError(errno.EBUSY, "the context is running other code", request["key"])
        child.cell = Job(request)
        self._send_cell(child, request["code"])

    @staticmethod
    def _send_cell(child: Child, code: str) -> None:
        assert child.requests is not None
        with contextlib.suppress(BrokenPipeError):  # it has just ended, which will be noticed
            write_all(child.requests, json.dumps(code).encode() + b"\n")

    def _op_signal(self, request: Json) -> Json:
        child = self._named(request)
        os.kill(child.pid, request["signal"])
        if request["signal"] == signal.SIGKILL:
            _, child.status = os.waitpid(child.pid, 0)
            self._ended(child)
        return {}

    def _op_stdin(self, request: Json) -> Json:
        child = self._named(request)
        if child.stdin is None:
            raise BrokenPipeError(errno.EPIPE, "its standard input is closed", request["key"])
        self._feed(child, request["data"], close=bool(request.get("close")))
        return {}

    def _named(self, request: Json) -> Child:
        if request["key"] not in self.children:
            raise ProcessLookupError(errno.ESRCH, "it is not running", request["key"])
        return self.children[request["key"]]

    # -- children ----------------------------------------------------------------------------------------------------

    def _fork(self, key: str, request: Json, body: Callable[[tuple[int, int]], None]) -> Child:
        """Start a child whose standard streams, requests and reports are pipes."""
        pipes = {name: os.pipe() for name in ("stdin", "stdout", "stderr", "requests", "reports")}
        pid = os.fork()
        if pid == 0:
            try:
                self._become_child(request, pipes)
                body((3, 4))
            except BaseException:
                with contextlib.suppress(BaseException):
                    os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(127)
        child = Child(key, request, pid)
        for name in ("stdin", "requests"):
            os.close(pipes[name][0])
        for name in ("stdout", "stderr", "reports"):
            os.close(pipes[name][1])
            fd = pipes[name][0]
            os.set_blocking(fd, False)
            child.fds[fd] = name
            self.selector.register(fd, selectors.EVENT_READ, lambda fd=fd: self._on_output(child, fd))
        child.stdin, child.requests = pipes["stdin"][1], pipes["requests"][1]
        os.set_blocking(child.stdin, False)
        self.children[key] = child
        return child

    def _become_child(self, request: Json, pipes: dict[str, tuple[int, int]]) -> None:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        wanted = [pipes["stdin"][0], pipes["stdout"][1], pipes["stderr"][1], pipes["requests"][0], pipes["reports"][1]]
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in wanted]
        for target, fd in enumerate(high):
            os.dup2(fd, target, inheritable=target < 3)
        os.environ.clear()
        os.environ.update(request.get("env") or {})
        self._limit(request)
        os.chdir(request.get("cwd") or self.scratch)
        self.harden()
        os.closerange(5, 1 << 16)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", False)), "utf-8", "surrogateescape")
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", False)), "utf-8", "surrogateescape")
        errors = io.BufferedWriter(io.FileIO(2, "w", False))
        sys.stderr = io.TextIOWrapper(errors, "utf-8", "backslashreplace", line_buffering=True)
        sys.argv = [""]

    def _limit(self, request: Json) -> None:
        limits = {
            resource.RLIMIT_AS: request.get("memory_bytes"),
            resource.RLIMIT_FSIZE: request.get("file_bytes"),
            resource.RLIMIT_NPROC: request.get("processes"),
            resource.RLIMIT_NOFILE: request.get("open_files"),
            resource.RLIMIT_CPU: request.get("cpu_seconds"),
            resource.RLIMIT_CORE: 0,
        }
        for kind, value in limits.items():
            if value is not None:
                most = resource.getrlimit(kind)[1]
                bound = value if most == resource.RLIM_INFINITY else min(value, most)
                resource.setrlimit(kind, (bound, bound))

    def _feed(self, child: Child, text: str, close: bool) -> None:
        """Write to a child's standard input as it takes it."""
        child.to_send += text.encode("utf-8", "surrogateescape")
        child.request["close_stdin"] = close
        if child.stdin is not None and child.stdin not in self.selector.get_map():
            self.selector.register(child.stdin, selectors.EVENT_WRITE, lambda: self._on_stdin(child))

    def _on_stdin(self, child: Child) -> None:
        assert child.stdin is not None
        try:
            while child.to_send:
                child.to_send = child.to_send[os.write(child.stdin, child.to_send[: 1 << 16]) :]
        except BlockingIOError:
            return
        except OSError:
            self._close_stdin(child)
            return
        if child.request.get("close_stdin"):
            self._close_stdin(child)
        else:
            self.selector.unregister(child.stdin)

    def _close_stdin(self, child: Child) -> None:
        if child.stdin is not None:
            with contextlib.suppress(KeyError):
                self.selector.unregister(child.stdin)
            os.close(child.stdin)
            child.stdin = None

    def _on_output(self, child: Child, fd: int) -> bool:
        """Take what there is; whether the pipe is still open."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        name = child.fds[fd]
        if not data:
            self.selector.unregister(fd)
            os.close(fd)
            del child.fds[fd]
            return False
        if name == "reports":
            child.report += data
            if len(child.report) > 2 * MAX_REPORT:
                os.kill(child.pid, signal.SIGKILL)
            elif child.report.endswith(b"\n") and child.request["op"] == "open":
                self._cell_done(child)
        elif child.cell is not None:
            self._collect(child, child.cell, name, data)
        return True

    def _collect(self, child: Child, job: Job, name: str, data: bytes) -> None:
        room = job.limit - job.seen[name]
        job.seen[name] += len(data)
        if room > 0:
            if job.stream:
                text = data[:room].decode("utf-8", "backslashreplace")
                self.send({"id": job.id, "stream": name, "data": text})
            job.output[name] += data[:room]
        if len(data) > room and not job.flags["truncated"]:
            job.flags["truncated"] = True
            self._kill(child)

    def _drain(self, child: Child) -> None:
        """What the child had written before it ended or reported."""
        for fd in list(child.fds):
            if child.fds[fd] == "reports" and child.request["op"] == "open":
                continue
            while fd in child.fds:
                before = len(child.report), sum(child.cell.seen.values()) if child.cell else 0
                if not self._on_output(child, fd):
                    break
                if before == (len(child.report), sum(child.cell.seen.values()) if child.cell else 0):
                    break

    def _cell_done(self, child: Child) -> None:
        self._drain(child)
        job, child.cell = child.cell, None
        report, child.report = child.report, b""
        if job is not None:
            self.send({"id": job.id, "done": self._result(job, report)})

    def _result(self, job: Job, report: bytes) -> Json:
        done: Json = {"results": [], "error": None, "exit_code": None, "signal": None, **job.flags}
        with contextlib.suppress(ValueError, TypeError):
            said = json.loads(report.splitlines()[0]) if report.strip() else {}
            done |= {k: said[k] for k in ("results", "error", "exit_code") if k in said}
        done["seconds"] = time.monotonic() - job.started
        for name, data in job.output.items():
            done[name] = "" if job.stream else data.decode("utf-8", "backslashreplace")
        return done

    def _reap(self) -> None:
        """Collect ended processes, those that nobody asked for too (orphans become children of process 1)."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in [c for c in self.children.values() if c.pid == pid]:
                child.status = status
                self._ended(child)

    def _ended(self, child: Child) -> None:
        job = child.cell
        if job is not None and job.exclusive:
            self._kill_everything()
            self._wait_for_all()
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        self._drain(child)
        self._forget(child)
        if job is None:
            return
        done = self._result(job, child.report)
        assert child.status is not None
        code = os.waitstatus_to_exitcode(child.status)
        done["exit_code"], done["signal"] = (code, None) if code >= 0 else (None, -code)
        done["ended"] = True
        if job.exclusive:
            self.wipe()
        self.send({"id": job.id, "done": done})
        if job.exclusive:
            self._make_spare(child.request)

    def _wait_for_all(self) -> None:
        """Until nothing that was killed is left, so that the scratch folder can be emptied."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, 0)
                for child in self.children.values():
                    if child.pid == pid:
                        child.status = status

    def _forget(self, child: Child) -> None:
        for fd in list(child.fds):
            self.selector.unregister(fd)
            os.close(fd)
        child.fds.clear()
        self._close_stdin(child)
        if child.requests is not None:
            os.close(child.requests)
        del self.children[child.key]
        if self.spare is child:
            self.spare = None

    # -- limits ------------------------------------------------------------------------------------------------------

    def _enforce(self) -> None:
        now = time.monotonic()
        for child in list(self.children.values()):
            job = child.cell
            if job is not None and not job.yields and now - job.started > YIELD_AFTER:
                job.yields = True
                _yield(child.pid)
            if job is None or now < job.deadline:
                continue
            if child.request["op"] == "open" and not job.flags["timed_out"]:
                job.deadline = now + GRACE  # a context keeps its state if it reacts to the interrupt
                os.kill(child.pid, signal.SIGINT)
            else:
                job.deadline = float("inf")
                self._kill(child)
            job.flags["timed_out"] = True
        if self.proc and any(c.cell and now - c.cell.started > WATCH_INTERVAL / 2 for c in self.children.values()):
            self._watch_memory()

    def _watch_memory(self) -> None:
        """A process has a limit of its own; all of them together are held to the same number here."""
        asked = (c.request.get("memory_bytes") for c in self.children.values())
        limits: list[int] = [limit for limit in asked if limit]
        if not limits:
            return
        pids = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        used = sum(map(_resident, pids))
        if used > max(limits):  # pages that forks share were counted for each; look again, slowly
            used = sum(map(_proportional, pids))
        if used > max(limits):
            for child in self.children.values():
                if child.cell:
                    child.cell.flags["out_of_memory"] = True
            self._kill_everything()

    def _kill(self, child: Child) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        if child.cell is not None and child.cell.exclusive:
            self._kill_everything()

    def _kill_everything(self) -> None:
        """Every process of the sandbox but this one. A fork cannot outrun it: it fails once the signal is pending."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)


def _yield(pid: int) -> None:
    """Let short runs of other sandboxes go first: a lower priority for a session, and for its share of the cores."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PGRP, pid, YIELD_TO)
    with contextlib.suppress(OSError), open(f"/proc/{pid}/autogroup", "w") as file:  # sched(7)
        file.write(str(YIELD_TO))


def _resident(pid: str) -> int:
    """Bytes of memory of a process that are not files."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as file:
        fields = file.read().split()
        return (int(fields[1]) - int(fields[2])) * resource.getpagesize()
    return 0


def _proportional(pid: str) -> int:
    """The same, where a page that n processes share counts for an n-th."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss_Anon:"))
    return 0
