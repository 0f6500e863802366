"""A program at a terminal: bytes between its pipes and the terminal, and the terminal's size as it changes. See pty(7).

This runs with code's rights. The terminal was opened before they were given up: code can open none itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import termios
from typing import Any

from rollenv.sandbox.inside import linux, report
from rollenv.sandbox.inside.protocol import from_json

_PR_SET_PDEATHSIG = 1
_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441
_PLACE = "/dev/pts"


def open_pair() -> tuple[int, int]:
    """A new terminal: (our end, the program's end). Mounts a file system of terminals where there is none.

    Raises:
        OSError: if the machine allows none.
    """
    if not os.path.exists(f"{_PLACE}/ptmx"):
        options = "newinstance,ptmxmode=0000,mode=0600,max=16"
        linux.mount("devpts", _PLACE, "devpts", linux.MS_NOSUID | linux.MS_NOEXEC | linux.MS_RDONLY, options)
    ours = os.open(f"{_PLACE}/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
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
        _become(command, theirs, fail)
    os.close(theirs)
    os.close(fail)
    if failure := os.read(failures, 16):
        raise OSError(int(failure), "no such program in the sandbox", command[0])
    with contextlib.suppress(OSError):
        _relay(ours, requests)
    os.close(ours)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def resize(fd: int, size: list[int]) -> None:
    """Rows and columns."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *(min(max(int(n), 1), 0xFFFF) for n in size), 0, 0))


def _become(command: list[str], theirs: int, fail: int) -> None:
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


def _relay(ours: int, requests: int) -> None:
    """Until the program's end of the terminal is closed by all that have it."""
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
            report.write_all(1, os.read(ours, 1 << 16))  # an error is the end


def _handle_resize(ours: int, requests: int) -> bool:
    line: Any = report.read_message(requests)
    with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
        resize(ours, from_json(json.loads(line)).size)
    return bool(line)
