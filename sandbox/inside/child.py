"""The program of a forked process: drops all privileges, reads its request from its own pipe, and runs it.

Limits and code come directly from the kernel; the parent process never sees them.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rollenv.sandbox.inside import files, protocol, terminal, users
from rollenv.sandbox.inside.interpreter import run_program, runner, serve_cells
from rollenv.sandbox.inside.protocol import (
    Command,
    FileOperation,
    FrameKind,
    OpenContext,
    StartTerminal,
    frame,
    from_json,
)

#: Descriptors of a child besides its standard streams, above those that programs close or reuse.
REQUESTS, REPORTS = 1000, 1001
#: The two ends of its terminal, if it has one.
TERMINAL = (1002, 1003)


def main(streams: Sequence[int], harden: Callable[[], None], scratch: str) -> NoReturn:
    """Become the child with the given streams."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in streams]
        for target, fd in zip((0, 1, 2, REQUESTS, REPORTS, *TERMINAL), high):  # noqa: B905 (a container's Python may be 3.9)
            os.dup2(fd, target, inheritable=target < 3)
        harden()
        os.closerange(3, REQUESTS)
        os.closerange(REPORTS + len(streams) - 4, 1 << 16)
        for fd, name in enumerate(("stdin", "stdout", "stderr")):
            stream = standard_stream(fd, name)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        sys.argv = [""]
        sys.path.insert(0, "")
        for name in [name for name in sys.modules if name.partition(".")[0] == "rollenv"]:
            del sys.modules[name]  # only a part of the package is loaded: code must import its own
        begin(scratch)
    except BaseException:
        with contextlib.suppress(BaseException):
            os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(127)


def standard_stream(fd: int, name: str) -> Any:
    """Open a standard stream as an interpreter does, with its name and mode."""
    raw = io.FileIO(fd, "w" if fd else "r", closefd=False)
    raw.name = f"<{name}>"
    buffered = io.BufferedWriter(raw) if fd else io.BufferedReader(raw)
    errors = "backslashreplace" if name == "stderr" else "surrogateescape"
    stream: Any = io.TextIOWrapper(buffered, "utf-8", errors, line_buffering=name == "stderr")
    stream.mode = "w" if fd else "r"
    return stream


def begin(scratch: str) -> NoReturn:
    """Read the request, apply its settings, and run it."""
    data = protocol.read_message(REQUESTS)
    if not data:  # the process was not needed
        os._exit(0)
    request = from_json(json.loads(data))
    try:
        os.environ.clear()
        os.environ.update(request.env)
        os.chdir(scratch)
        if request.user:
            users.become(request.user)
        os.chdir(request.cwd or ".")
        limits = {
            resource.RLIMIT_AS: request.memory_bytes,
            resource.RLIMIT_FSIZE: request.file_bytes,
            resource.RLIMIT_NPROC: request.processes,
            resource.RLIMIT_NOFILE: request.open_files,
            resource.RLIMIT_SIGPENDING: 1024,
            resource.RLIMIT_MSGQUEUE: 0,
            resource.RLIMIT_CORE: 0,
        }
        for kind, value in limits.items():
            if value is not None:
                most = resource.getrlimit(kind)[1]
                bound = value if most == resource.RLIM_INFINITY else min(value, most)
                resource.setrlimit(kind, (bound, bound))
        if isinstance(request, StartTerminal):
            terminal.run(request.command, request.size, *TERMINAL, REQUESTS)
        if isinstance(request, Command):
            for each in (signal.SIGINT, signal.SIGPIPE):
                signal.signal(each, signal.SIG_DFL)
            try:
                os.execvpe(request.command[0], request.command, os.environ)
            except FileNotFoundError:
                raise FileNotFoundError(2, "no such program in the sandbox", request.command[0]) from None
        if isinstance(request, FileOperation):
            files.perform(request)
            os._exit(0)
        cells = runner(request.language, REPORTS) if isinstance(request, OpenContext) else None
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None) or 22
        name = getattr(error, "filename", None) or getattr(request, "path", None)
        message = f"{os.strerror(number)}: {name}" if isinstance(name, str) else getattr(error, "strerror", str(error))
        protocol.write_all(REPORTS, frame(FrameKind.FAILED, str(number), str(message)))
        os._exit(126)
    protocol.write_all(REPORTS, frame(FrameKind.READY))
    if cells is not None:
        serve_cells(cells, REQUESTS, REPORTS)
    code, request.code = request.code, ""
    run_program(code, REPORTS)
