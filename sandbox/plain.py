"""A runner WITHOUT isolation: an ordinary process of this user, with limits."""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rollenv.sandbox.types import Limits, RunResult

#: Runs first in the new process: sets limits that hold from there on, then becomes the program. Without ``site``
#: Python starts three times as fast, so what programs expect of ``site`` is done here.
_BOOT = """
import builtins, os, resource, sys
parent, seconds, memory, size, files, processes, *packages = sys.argv[1:]
def limit(what, n):
    hard = resource.getrlimit(what)[1]
    n = int(n) if hard == resource.RLIM_INFINITY else min(int(n), hard)
    resource.setrlimit(what, (n, n))
limit(resource.RLIMIT_CPU, seconds)
limit(resource.RLIMIT_AS, memory)
limit(resource.RLIMIT_FSIZE, size)
limit(resource.RLIMIT_NOFILE, files)
limit(resource.RLIMIT_CORE, 0)
if processes != "0":
    limit(resource.RLIMIT_NPROC, processes)
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != int(parent):
        os._exit(1)
    del ctypes
sys.path += packages
sys.argv[:] = ["main.py"]
builtins.exit = builtins.quit = sys.exit
def hook(kind, error, trace):  # without the line of this text
    below = trace and trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(below), below)
sys.excepthook = hook
with open("main.py", "rb") as file:
    program = file.read()
__file__ = "main.py"
scope = globals()
for name in "builtins os resource limit parent seconds memory size files processes packages file hook".split():
    del scope[name]
del scope, name
exec(compile(program, "main.py", "exec"))
"""

#: How often a run is looked at whose output stays open, in seconds.
_TICK = 0.05
_CHUNK = 1 << 16


class PlainRunner:
    """Runs programs as ordinary processes. This does NOT isolate: a program can read and write what this user can,
    reach the network, and signal other processes of this user. Use it for code you would run yourself.

    What does hold: time, memory, file size and output are limited; the program starts in an empty folder that is
    removed afterwards, with an environment of its own; it and what it started in its session end with the run, and the
    program ends when this process does, however this process ends (elsewhere than on Linux, when its time is up).

    Args:
        limits: what one run may use.
        packages: whether programs may import what is installed beside rollenv.
    """

    def __init__(self, limits: Limits | None = None, packages: bool = True):
        self.limits = limits or Limits()
        self.packages = [p for p in site.getsitepackages() if os.path.isdir(p)] if packages else []
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def run(self, code: str, *, stdin: str = "", timeout: float | None = None) -> RunResult:
        """See :class:`~rollenv.sandbox.types.Runner`."""
        seconds = self.limits.seconds if timeout is None else timeout
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="rollenv-", ignore_cleanup_errors=True) as folder:
            Path(folder, "main.py").write_bytes(code.encode("utf-8", "surrogatepass"))
            with self._process(folder, seconds) as process:
                output = _Output(process, stdin.encode("utf-8", "surrogatepass"), self.limits.output_bytes)
                timed_out = output.read_until(start + seconds)
        return RunResult(
            stdout=output.text("stdout"),
            stderr=output.text("stderr"),
            exit_code=process.returncode,
            timed_out=timed_out,
            seconds=time.monotonic() - start,
            truncated=output.truncated,
        )

    def close(self) -> None:
        """End the programs that run now; the runner can be used again."""
        with self._lock:
            for process in self._running:
                _kill(process)

    @contextlib.contextmanager
    def _process(self, folder: str, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
        """The started program; whatever happens, nothing of its session is left afterwards."""
        limits = self.limits
        arguments = [os.getpid(), 2 * int(seconds) + 2]  # processor time: only for when nobody watches the clock
        arguments += [limits.memory_mb << 20, limits.disk_mb << 20, limits.open_files, self._process_limit()]
        process = subprocess.Popen(
            [sys.executable, "-s", "-S", "-P", "-B", "-c", _BOOT, *map(str, arguments), *self.packages],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=_environment(folder),
            start_new_session=True,
        )
        with self._lock:
            self._running.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._running.discard(process)
                _kill(process)
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()

    def _process_limit(self) -> int:
        """On top of what runs already, since the system counts all of a user's; root is not bound by it (0: none)."""
        try:
            running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
        except (OSError, ValueError, IndexError):
            return 0
        return running + self.limits.processes if os.getuid() else 0


def _environment(folder: str) -> dict[str, str]:
    """Little, and the same everywhere: a fixed hash seed makes what a program prints repeatable."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the whole session of a process that was not waited for yet, so that its number cannot be another's."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


class _Output:
    """Feeds standard input and collects both outputs up to a limit."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes, limit: int):
        self.process, self.limit = process, limit
        self.truncated = False
        self._left = memoryview(stdin)
        self._got = {"stdout": bytearray(), "stderr": bytearray()}
        self._selector = selectors.DefaultSelector()
        for name in self._got:
            self._selector.register(getattr(process, name), selectors.EVENT_READ, name)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        self._selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")

    def read_until(self, deadline: float) -> bool:
        """Until the program ended, wrote too much, or the deadline (monotonic seconds) passed: whether it did."""
        with self._selector:
            while not self.truncated:
                left = deadline - time.monotonic()
                if left <= 0:
                    return True
                for key, _ in self._selector.select(min(left, _TICK if self._selector.get_map() else _TICK / 50)):
                    (self._feed if key.data == "stdin" else self._collect)(key.fileobj, key.data)  # type: ignore[arg-type]
                if self._ended():
                    self._drain()
                    break
        return False

    def text(self, name: str) -> str:
        # a cut may fall inside a character; the incremental decoder leaves such an end out
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(bytes(self._got[name][: self.limit])).replace("\r\n", "\n")

    def _feed(self, stream: IO[bytes], name: str) -> None:
        try:
            self._left = self._left[os.write(stream.fileno(), self._left[:_CHUNK]) :] if self._left else self._left
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._left = memoryview(b"")
        if not self._left:
            self._selector.unregister(stream)
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _collect(self, stream: IO[bytes], name: str) -> None:
        chunk = os.read(stream.fileno(), _CHUNK)
        if not chunk:
            self._selector.unregister(stream)
        self._got[name] += chunk
        self.truncated |= len(self._got[name]) > self.limit

    def _ended(self) -> bool:
        """Whether the program itself ended, without reaping it: its children may hold the pipes open for ever."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _drain(self) -> None:
        """What the pipes still hold of a program that has ended."""
        while not self.truncated and self._selector.get_map():
            ready = [key for key, _ in self._selector.select(0) if key.data != "stdin"]
            if not ready:
                return
            for key in ready:
                self._collect(key.fileobj, key.data)  # type: ignore[arg-type]
