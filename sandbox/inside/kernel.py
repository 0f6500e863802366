"""The program inside a sandbox: it has processes forked, carries bytes to and from them, and holds them to limits.

It is process 1 of its pid namespace: when it ends, everything in the sandbox ends. It needs only the standard library.
:mod:`jail` and ``container`` put it where it works. It never forks what runs code, because it has seen code: that is
done in :mod:`room`.

A message is four bytes of length, JSON, and as many bytes as its ``bytes`` says. Requests carry ``id`` and ``op``; the
answers to a request are any number of ``{"id", "stream"}`` with bytes and one ``{"id", "done": {...}}``. The channel's
end is the sandbox's end.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from rollenv.sandbox.inside.enforce import Enforcer
from rollenv.sandbox.inside.processes import Child, Job, Room
from rollenv.sandbox.inside.report import Violation, write_all
from rollenv.sandbox.inside.watch import Watch

#: Bytes of one message at most; what is larger ends the channel.
MAX_MESSAGE = 64 << 20
#: Operations that have code or a program run.
_STARTING = frozenset({"run", "command", "terminal", "file", "open", "cell"})
#: Bytes of output that are sent with the result instead of before it.
_HELD = 1 << 16
#: Words of a command, and characters of each, that a list of processes shows.
_SHOWN = 100

Json = dict[str, Any]


class Kernel(Enforcer):
    """Serves one channel until it ends.

    Args:
        inward: a file descriptor that requests come from.
        outward: the channel for answers; may be the same.
        new_room: makes a room; None where there is only ``common``.
        common: the one room of a container.
        watch: looks at memory and time.
        idle_seconds: processor time that what stays between requests may use.
    """

    def __init__(
        self,
        inward: int,
        outward: int,
        *,
        new_room: Callable[[], Room] | None,
        common: Room | None,
        watch: Watch,
        idle_seconds: float,
    ):
        super().__init__(watch, idle_seconds)
        self.inward, self.outward = inward, outward
        self.new_room, self.home = new_room, common
        self.only_room = False  # whether nothing can take the place of the home room
        self.spare: Room | None = None
        self.named: dict[str, Child] = {}
        self.inbox = bytearray()
        self.selector = selectors.DefaultSelector()
        self.selector.register(inward, selectors.EVENT_READ, self._on_channel)
        if common is not None:
            self._join(common)

    def serve(self) -> None:
        """The loop. Returns when the channel has ended."""
        with contextlib.suppress(EOFError):
            while True:
                for key, _ in self.selector.select(self._patience()):
                    now = self.selector.get_map().get(key.fd)
                    if now is not None and now.data is key.data:  # the number may belong to another process by now
                        key.data()
                self._enforce()
        for room in self.rooms:
            room.end()

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
            if size > MAX_MESSAGE:
                raise EOFError
            if len(self.inbox) < size:
                return
            request = json.loads(self.inbox[4:size])
            whole = size + request.get("bytes", 0)
            if len(self.inbox) < whole:
                return
            payload = bytes(self.inbox[size:whole])
            del self.inbox[:whole]
            self._dispatch(request, payload)

    def _dispatch(self, request: Json, payload: bytes) -> None:
        if request["op"] in _STARTING:
            self._starts(time.monotonic())
        try:
            if self._paused_at is not None and request["op"] in _STARTING:
                raise OSError(errno.ESHUTDOWN, "the sandbox is paused; resume() it first")
            answer = getattr(self, f"_op_{request['op']}")(request, payload)
        except EOFError:
            raise
        except Exception as error:
            number = error.errno if isinstance(error, OSError) else None
            answer = {"failed": {"errno": number or errno.EINVAL, "message": f"{error}"}}
        if answer is not None:
            self.send({"id": request["id"], "done": answer})

    def send(self, message: Json, payload: bytes = b"") -> None:
        """Put a message on the channel."""
        if payload:
            message["bytes"] = len(payload)
        data = json.dumps(message).encode()
        try:
            write_all(self.outward, len(data).to_bytes(4, "big") + data + payload)
        except OSError:
            raise EOFError from None

    # -- operations --------------------------------------------------------------------------------------------------

    def _op_ping(self, request: Json, _: bytes) -> Json:
        running = sum(len(room.children) for room in self.rooms)
        return {"pid": os.getpid(), "python": sys.version.split()[0], "processes": running}

    def _op_memory(self, _: Json, __: bytes) -> Json:
        return {"used": self.watch.used(self._scratches(), True)}

    def _op_metrics(self, _: Json, __: bytes) -> Json:
        """What is used now: bytes, seconds of processors, processes."""
        disk = os.fstatvfs(self.home.scratch) if self.home is not None and self.home.scratch is not None else None
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize if disk else 0
        return {
            "cpu_seconds": self.watch.cpu_seconds(),
            "memory_used": self.watch.used(self._scratches(), True),
            "disk_used": used,
            "processes": len(self.watch.pids()),
        }

    def _op_processes(self, _: Json, __: bytes) -> Json:
        """What runs by request in the home room: contexts and commands, with their numbers inside."""
        now = time.monotonic()
        found = [(key, child) for key, child in self.named.items() if child.pid and child.room is self.home]
        return {
            "processes": [
                {"key": key, "pid": child.pid, "seconds": now - child.begun, "words": child.words}
                for key, child in found
                if child.context or child.words
            ]
        }

    def _op_pid(self, request: Json, _: bytes) -> Json | None:
        """The number of a process inside, as soon as there is one."""
        child = self._find(request)
        if child.pid:
            return {"pid": child.pid}
        child.asked.append(request["id"])
        return None

    def _scratches(self) -> list[int]:
        return [room.scratch for room in self.rooms if room.scratch is not None]

    def _op_run(self, request: Json, payload: bytes) -> None:
        """One program in a room that was never used before and will never be used again."""
        if self.new_room is None:
            room = self._the_home()
            child, room.waiting = room.waiting or self._fork(room), None
        else:
            room, self.spare = self.spare or self._new_room(), None
            child, room.waiting = room.waiting or self._fork(room, once=True), None
        self._begin(child, request, payload, do="run", code=request["code"])

    def _prepare(self) -> None:
        """A room, with a process that waits in it, for the next run."""
        if self.new_room is None:
            home = self._the_home()
            home.waiting = home.waiting or self._fork(home)
        elif self.spare is None:
            with contextlib.suppress(OSError):  # the next run says what is wrong
                self.spare = self._new_room()
                self.spare.waiting = self._fork(self.spare, once=True)

    def _op_command(self, request: Json, payload: bytes) -> None:
        """A fork becomes another program."""
        child = self._fork(self._the_home())
        child.words = [str(word)[:_SHOWN] for word in request["command"][:_SHOWN]]
        self._begin(child, request, payload, do="command", command=request["command"])

    def _op_terminal(self, request: Json, payload: bytes) -> None:
        """The same, at a terminal."""
        child = self._fork(self._the_home(), terminal=True)
        child.words = [str(word)[:_SHOWN] for word in request["command"][:_SHOWN]]
        self._begin(child, request, payload, do="terminal", command=request["command"], size=request["size"])

    def _op_resize(self, request: Json, _: bytes) -> Json:
        """A terminal has another size."""
        child = self._find(request)
        if child.job is None or child.job.op != "terminal":
            raise ProcessLookupError(errno.ESRCH, "it is at no terminal", request["key"])
        child.tell({"size": request["size"]})
        return {}

    def _op_pause(self, _: Json, __: bytes) -> Json:
        """Stop everything; time does not count until it resumes."""
        if self._paused_at is None:
            self._paused_at = time.monotonic()
            self._the_home().order(signal_all=int(signal.SIGSTOP))
        return {}

    def _op_resume(self, _: Json, __: bytes) -> Json:
        self._go_on()
        return {}

    def _op_file(self, request: Json, payload: bytes) -> None:
        """A fork does something to a file."""
        names = ("what", "path", "to", "max_bytes", "parts", "recursive", "port", "follow")
        terms = {name: request[name] for name in names if name in request}
        self._begin(self._fork(self._the_home()), request, payload, do="file", **terms)

    def _op_pack(self, request: Json, payload: bytes) -> None:
        """A fork with the rights of the room's first process packs what was written in a machine."""
        child = self._fork(self._the_home(), trusted=True)
        self._begin(child, request, payload, do="file", what="pack_machine", path="the machine")

    def _op_end_all(self, request: Json, _: bytes) -> None:
        """Kill everything in the home room, and wait until nothing of it is left."""
        self._the_home().order(end_all=request["id"])

    def _op_open(self, request: Json, _: bytes) -> None:
        """A fork that stays and runs cell after cell."""
        if request["key"] in self.named:
            raise FileExistsError(errno.EEXIST, "there is a context of this name", request["key"])
        child = self._fork(self._the_home())
        child.context = True
        self._begin(child, {**request, "last": True}, b"", do="cells", language=request.get("language"))

    def _op_cell(self, request: Json, _: bytes) -> None:
        child = self._find(request)
        if child.job is not None:
            raise BlockingIOError(errno.EBUSY, "the context is running other code", request["key"])
        if child.report.unread or not child.context:
            child.room.signal(child, signal.SIGKILL, True)
            raise ProcessLookupError(errno.ESRCH, "it is not running", request["key"])
        child.report.clear()
        child.cells += 1
        child.job = Job(request)
        child.tell({"number": request["id"], "code": request["code"], "env": request.get("env")})

    def _op_signal(self, request: Json, _: bytes) -> Json:
        """A signal to a process; an interrupt reaches a context only while it runs a cell."""
        child, number = self._find(request), request["signal"]
        if number != signal.SIGINT or child.job is not None:
            child.room.signal(child, number, number == signal.SIGKILL)
        if number == signal.SIGKILL:
            self.named.pop(request["key"], None)
        return {}

    def _op_stdin(self, request: Json, payload: bytes) -> None:
        """More for a standard input. It is done when there is room for the next piece."""
        child = self._find(request)

        def then(taken: bool) -> None:
            failed = {"errno": errno.EPIPE, "message": "its standard input is closed"}
            self.send({"id": request["id"], "done": {} if taken else {"failed": failed}})

        child.stdin.put(payload, close=bool(request.get("last")), then=then)

    def _op_ack(self, request: Json, _: bytes) -> Json:
        """So many bytes of output have been taken; there is room for as many."""
        child = self._find(request)
        if child.job is not None:
            child.job.flying -= request["taken"]
            if child.job.flying < child.job.window:
                self._listen(child)
        return {}

    def _find(self, request: Json) -> Child:
        if request["key"] not in self.named:
            raise ProcessLookupError(errno.ESRCH, "it is not running", request["key"])
        return self.named[request["key"]]

    def _begin(self, child: Child, request: Json, payload: bytes, **terms: Any) -> None:
        """Give a process its terms and the beginning of its input."""
        names = ("memory_bytes", "file_bytes", "processes", "open_files", "env", "cwd", "user")
        child.job, child.key = Job(request), request.get("key") or f"{request['op']}-{request['id']}"
        self.named[child.key] = child
        child.tell({**{name: request.get(name) for name in names}, **terms})
        child.stdin.put(payload, close=bool(request.get("last")))

    # -- rooms -------------------------------------------------------------------------------------------------------

    def _the_home(self) -> Room:
        if self.home is None:
            self.home = self._new_room()
        return self.home

    def _new_room(self) -> Room:
        assert self.new_room is not None
        room = self.new_room()
        self.watch.own.add(room.pid)
        self._join(room)
        return room

    def _join(self, room: Room) -> None:
        self.rooms.append(room)
        room.connection.setblocking(False)
        self.selector.register(room.connection, selectors.EVENT_READ, lambda: self._on_room(room))
        if room.pidfd is not None:
            self.selector.register(room.pidfd, selectors.EVENT_READ, lambda: self._gone(room))

    def _fork(self, room: Room, **how: bool) -> Child:
        child = room.fork(self.selector, **how)
        self._listen(child)
        return child

    def _listen(self, child: Child) -> None:
        for fd in child.fds:
            if fd not in self.selector.get_map():
                self.selector.register(fd, selectors.EVENT_READ, lambda fd=fd: self._on_output(child, fd))

    def _on_room(self, room: Room) -> bool:
        """What the first process of a room says; whether it said something."""
        try:
            data = room.connection.recv(4096)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(room.connection)
            if room.pidfd is None:
                raise EOFError  # the only room is gone
            return False
        said = json.loads(data)
        if "cleared" in said:
            for child in list(room.children.values()):
                if child.status is not None:
                    self._finish(child)
            self._prepare()
        elif "all_ended" in said:
            self._ending = False
            if said["all_ended"]:
                self.send({"id": said["all_ended"], "done": {}})
        elif speaks := room.children.get(said["number"]):
            self._heard(speaks, said)
        return True

    def _heard(self, child: Child, said: Json) -> None:
        if "error" in said:
            child.report.failed = {"errno": errno.EAGAIN, "message": said["error"]}
            self._ended(child, 126 << 8)
        elif "status" in said:
            self._ended(child, said["status"])
        else:
            child.pid = said["pid"]
            for asked in child.asked:
                self.send({"id": asked, "done": {"pid": child.pid}})
            child.asked.clear()

    def _ended(self, child: Child, status: int) -> None:
        """A process has ended. A run is over when its whole room is."""
        child.status = status
        if child.job is None or child.job.op != "run":
            self._finish(child)
        elif child.room.pidfd is None:
            child.room.order(clear=True)

    def _gone(self, room: Room) -> None:
        """Nothing is left of a room."""
        while self._on_room(room):
            pass
        for fileobj in (room.connection, room.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(fileobj)  # type: ignore[arg-type]
        if self.only_room and room is self.home:
            raise EOFError
        self.rooms.remove(room)
        self.watch.own.discard(room.pid)
        self.home = None if self.home is room else self.home
        self.spare = None if self.spare is room else self.spare
        again = any(child.job and child.job.again for child in room.children.values())
        for child in list(room.children.values()):
            child.status = 9 if child.status is None else child.status
            self._finish(child)
        room.close()
        if again:
            self._prepare()

    # -- output ------------------------------------------------------------------------------------------------------

    def _on_output(self, child: Child, fd: int) -> bool:
        """Take what there is; whether there may be more."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        name = child.fds[fd]
        if not data:
            self._let_go(child, fd)
            return False
        if name == "reports":
            self._on_report(child, data)
        elif child.job is not None:
            self._collect(child, child.job, name, data)
        return True

    def _let_go(self, child: Child, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self.selector.unregister(fd)
        os.close(fd)
        del child.fds[fd]

    def _on_report(self, child: Child, data: bytes) -> None:
        report, job = child.report, child.job
        try:
            if job is None or job.violation:
                raise Violation("nothing was asked")
            report.take(data)
            if report.done is not None and (job.op != "cell" or report.done != job.id):
                raise Violation("it is of another cell")
        except Violation as error:
            if job is not None:
                job.violation = job.violation or f"its report was not in order: {error}"
            self._stop(child)
            return
        self._show(child, job)
        if child.context and job.op == "open" and report.ready:
            self._answer(child, job)
        elif report.done is not None:
            self._drain(child)
            self._answer(child, job)

    def _show(self, child: Child, job: Job) -> None:
        """Pass results on as they come, after what was written before them."""
        if job.showing and job.shown < child.report.whole:
            for fd in [fd for fd in child.fds if child.fds[fd] != "reports"]:
                self._on_output(child, fd)
            for result in child.report.results[job.shown : child.report.whole]:
                self.send({"id": job.id, "result": result})
            job.shown = child.report.whole

    def _collect(self, child: Child, job: Job, name: str, data: bytes) -> None:
        left = job.limit - job.seen[name]
        job.seen[name] += len(data)
        job.held[name] += data[: max(left, 0)]
        if job.stream or len(job.held[name]) >= _HELD:
            self._send_held(job, name)
        job.flying += len(data)
        if job.window and job.flying >= job.window:
            for fd in child.fds:
                if child.fds[fd] != "reports" and fd in self.selector.get_map():
                    self.selector.unregister(fd)
        if len(data) > left and not job.flags["truncated"]:
            job.flags["truncated"] = True
            self._stop(child)

    def _send_held(self, job: Job, name: str) -> None:
        if data := bytes(job.held[name]):
            job.held[name].clear()
            self.send({"id": job.id, "stream": name}, data)

    def _drain(self, child: Child) -> None:
        """What was written before the end; others may hold the pipes open and keep writing."""
        for fd in [fd for fd in child.fds if child.fds[fd] != "reports" or child.status is not None]:
            for _ in range(1 << 10):
                if fd not in child.fds or not self._on_output(child, fd):
                    break

    def _finish(self, child: Child) -> None:
        """A process has ended: answer its request and release it."""
        job = child.job
        self._drain(child)
        for fd in list(child.fds):
            self._let_go(child, fd)
        child.room.children.pop(child.number, None)
        if child.room.waiting is child:
            child.room.waiting = None
        if self.named.get(child.key) is child:
            del self.named[child.key]
        if child.job is not None and job is not None:
            self._answer(child, job)
        for asked in child.asked:
            gone = {"errno": errno.ESRCH, "message": "it has ended"}
            self.send({"id": asked, "done": {"failed": gone}})
        child.asked.clear()
        child.stdin.close()
        child.requests.close()

    def _answer(self, child: Child, job: Job) -> None:
        child.job = None
        report, status = child.report, child.status
        self._rested()
        if self.watch.killed():
            job.flags["out_of_memory"] = True
            self._out_of_memory()
        for name in job.held:
            self._send_held(job, name)
        if report.failed is not None and not report.ready and job.op != "cell":
            self.send({"id": job.id, "done": {"failed": report.failed}})
            return
        code = None if status is None else os.waitstatus_to_exitcode(status)
        done: Json = {
            "results": report.results,
            "error": report.error,
            "exit_code": code if code is None or code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "seconds": time.monotonic() - job.started,
            "ended": status is not None,
            "count": child.cells or None,
            **job.flags,
        }
        if job.violation:
            done["results"], done["error"] = [], {"name": "ReportViolation", "value": job.violation, "traceback": ""}
        self.send({"id": job.id, "done": done})
