"""The life of a fork: it enters its namespaces, drops all privileges, reads its limits from its own pipe, and begins.

Its limits and its code come directly from the kernel. The process that it was forked from never sees them.

In a machine it becomes one of the users of /etc/passwd and /etc/group there, which the machine's code may have written.
A program at a terminal has a process before it, with code's rights, that carries bytes and sizes; see pty(7).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import resource
import select
import signal
import struct
import sys
import termios
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from rollenv.sandbox.inside import files, linux, protocol
from rollenv.sandbox.inside.interpreter import run_program, runner, serve_cells
from rollenv.sandbox.inside.protocol import Command, FileOperation, OpenContext, Run, Terminal, from_json

_PR_SET_PDEATHSIG = 1
_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441
_PTS = "/dev/pts"


def open_pair() -> tuple[int, int]:
    """A new terminal: (our end, the program's end). Mounts a file system of terminals where there is none.

    Raises:
        OSError: if the machine allows none.
    """
    if not os.path.exists(f"{_PTS}/ptmx"):
        options = "newinstance,ptmxmode=0000,mode=0600,max=16"
        linux.mount("devpts", _PTS, "devpts", linux.MS_NOSUID | linux.MS_NOEXEC | linux.MS_RDONLY, options)
    ours = os.open(f"{_PTS}/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(ours, _TIOCSPTLCK, struct.pack("i", 0))
    return ours, fcntl.ioctl(ours, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def run(command: list[str], size: list[int], ours: int, theirs: int, requests: int) -> None:
    """Run a program at the terminal to its end, and end like it. Does not return.

    Raises:
        FileNotFoundError: if there is no such program.
    """
    resize(ours, size)
    failures, fail = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            linux.libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            os.setsid()
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
            for fd in (0, 1, 2):
                os.dup2(theirs, fd)
            for number in (signal.SIGINT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(command[0], command, os.environ)
        except OSError as error:
            os.write(fail, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(theirs)
    os.close(fail)
    if failure := os.read(failures, 16):
        raise OSError(int(failure), "no such program in the sandbox", command[0])
    with contextlib.suppress(OSError):
        # Until the program's end of the terminal is closed by all that have it.
        os.set_blocking(ours, False)
        waiting, sources = b"", {0, requests}
        while True:
            wanted = [ours, *(fd for fd in sources if fd != 0 or not waiting)]
            readable, writable, _ = select.select(wanted, [ours] if waiting else [], [])
            if writable:
                with contextlib.suppress(BlockingIOError):
                    waiting = waiting[os.write(ours, waiting) :]
            if 0 in readable:
                waiting = os.read(0, 4096)
                if not waiting:
                    sources.discard(0)
            if requests in readable and not _handle_resize(ours, requests):
                sources.discard(requests)
            if ours in readable:
                protocol.write_all(1, os.read(ours, 1 << 16))  # an error is the end
    os.close(ours)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def resize(fd: int, size: list[int]) -> None:
    """Rows and columns."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *(min(max(int(n), 1), 0xFFFF) for n in size), 0, 0))


def _handle_resize(ours: int, requests: int) -> bool:
    line: Any = protocol.read_message(requests)
    with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
        resize(ours, from_json(json.loads(line)).size)
    return bool(line)


_MOST = 1 << 20
#: Who is there even without a list of accounts.
_ROOT = ["root", "x", "0", "0", "", "/", "/bin/sh"]


def become(user: str) -> None:
    """Be a user as Docker names them (``name``, ``number``, ``name:group`` or ``number:number``) from now on.

    HOME, USER and LOGNAME are the user's, where the environment does not say.

    Raises:
        OSError: if there is no such user or group.
    """
    name, _, group = user.partition(":")
    entry = _find("/etc/passwd", name) or (_ROOT if name == "root" else None)
    if entry is None and not name.isdecimal():
        raise OSError(errno.ESRCH, f"there is no user {name!r} in the machine")
    uid, gid = (int(entry[2]), int(entry[3])) if entry else (int(name), 0)
    if group:
        found = _find("/etc/group", group)
        if found is None and not group.isdecimal():
            raise OSError(errno.ESRCH, f"there is no group {group!r} in the machine")
        gid = int(found[2]) if found else int(group)
    for variable, value in {
        "HOME": entry[5] if entry else "/", "USER": entry[0] if entry else name, "LOGNAME": entry[0] if entry else name,
    }.items():  # fmt: skip
        os.environ.setdefault(variable, value)
    if (uid, gid) != (os.getuid(), os.getgid()):
        os.setgroups(_groups(entry[0], gid) if entry else [gid])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def _find(path: str, name: str) -> list[str] | None:
    """The fields of the first line with this name or number. What looks like a number is one."""
    wanted = [fields for fields in _lines(path) if name == fields[2 if name.isdecimal() else 0]]
    return wanted[0] if wanted else None


def _groups(name: str, gid: int) -> list[int]:
    return sorted({gid, *(int(fields[2]) for fields in _lines("/etc/group") if name in fields[3].split(","))})


def _lines(path: str) -> list[list[str]]:
    """Lines whose numbers are numbers."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        text = os.read(fd, _MOST).decode("utf-8", "replace")
    except OSError:
        return []
    finally:
        os.close(fd)
    lines = [line.split(":") for line in text.splitlines()]
    needed = 7 if path.endswith("passwd") else 4
    return [f for f in lines if len(f) >= needed and f[2].isdecimal() and (needed == 4 or f[3].isdecimal())]


#: The descriptors of a child besides its standard streams, out of the way of those that programs close or reuse.
REQUESTS, REPORTS = 1000, 1001
#: The two ends of its terminal, if it has one.
TERMINAL = (1002, 1003)


def main(streams: Sequence[int], harden: Callable[[], None], scratch: str) -> None:
    """Become the child with these five streams. Does not return."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
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
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", False)), "utf-8", "surrogateescape")
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", False)), "utf-8", "surrogateescape")
        errors = io.BufferedWriter(io.FileIO(2, "w", False))
        sys.stderr = io.TextIOWrapper(errors, "utf-8", "backslashreplace", line_buffering=True)
        sys.argv = [""]
        sys.path.insert(0, "")
        for name in [name for name in sys.modules if name.partition(".")[0] == "rollenv"]:
            del sys.modules[name]  # only a part of the package is there: code that imports it shall find its own
        begin(scratch)
    except BaseException:
        with contextlib.suppress(BaseException):
            os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(127)


def begin(scratch: str) -> None:
    """Read the request, apply its settings, and run it."""
    data = protocol.read_message(REQUESTS)
    if not data:  # never needed
        os._exit(0)
    request = from_json(json.loads(data))
    try:
        os.environ.clear()
        os.environ.update(request.env)
        os.chdir(scratch)
        if request.user:
            become(request.user)
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
        if isinstance(request, Terminal):
            run(request.command, request.size, *TERMINAL, REQUESTS)
        elif isinstance(request, Command):
            for each in (signal.SIGINT, signal.SIGPIPE):
                signal.signal(each, signal.SIG_DFL)
            try:
                os.execvpe(request.command[0], request.command, os.environ)
            except FileNotFoundError:
                raise FileNotFoundError(2, "no such program in the sandbox", request.command[0]) from None
        elif isinstance(request, FileOperation):
            files.perform(request)
            os._exit(0)
        elif isinstance(request, OpenContext):
            cells = runner(request.language, REPORTS)
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None) or 22
        name = getattr(error, "filename", None) or getattr(request, "path", None)
        message = f"{os.strerror(number)}: {name}" if isinstance(name, str) else getattr(error, "strerror", str(error))
        protocol.write_all(REPORTS, protocol.frame(protocol.FAILED, str(number), str(message)))
        os._exit(126)
    protocol.write_all(REPORTS, protocol.frame(protocol.READY))
    if isinstance(request, Run):
        code, request.code = request.code, ""
        run_program(code, REPORTS)
    serve_cells(cells, REQUESTS, REPORTS)
