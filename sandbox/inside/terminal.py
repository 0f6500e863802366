"""A program in a terminal, and a process with code's permissions that relays bytes and sizes; see pty(7)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import termios
from typing import Any, NoReturn

from rollenv.sandbox.inside import linux, protocol

_PR_SET_PDEATHSIG = 1
_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441
_PTS = "/dev/pts"


def open_pair() -> tuple[int, int]:
    """Open a new terminal; return our end and the program's end. Mount devpts if necessary."""
    if not os.path.exists(f"{_PTS}/ptmx"):
        options = "newinstance,ptmxmode=0000,mode=0600,max=16"
        linux.mount("devpts", _PTS, "devpts", linux.MS_NOSUID | linux.MS_NOEXEC | linux.MS_RDONLY, options)
    ours = os.open(f"{_PTS}/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(ours, _TIOCSPTLCK, struct.pack("i", 0))
    return ours, fcntl.ioctl(ours, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def run(command: list[str], size: list[int], ours: int, theirs: int, requests: int) -> NoReturn:
    """Run a program in the terminal, and exit with its status."""
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
        # Relay until all processes have closed the program's end of the terminal.
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
                protocol.write_all(1, os.read(ours, 1 << 16))  # raises OSError at the end
    os.close(ours)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def resize(fd: int, size: list[int]) -> None:
    """Set the rows and columns of a terminal."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *(min(max(int(n), 1), 0xFFFF) for n in size), 0, 0))


def _handle_resize(ours: int, requests: int) -> bool:
    line: Any = protocol.read_message(requests)
    with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
        resize(ours, protocol.from_json(json.loads(line)).size)
    return bool(line)
