"""Grading of mathematical answers with a time limit, in any thread and process.

:func:`grade` decides plain numbers and equal texts at once (:mod:`rollenv.envs.math.compare`) and passes the rest to
math-verify in grader processes, because an answer such as ``9^{9^{9}}`` could not be interrupted in this one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from rollenv.core.errors import MissingExtra, RollenvError
from rollenv.core.needs import install_hint
from rollenv.envs.math.compare import compare, without_names

#: Processor time limit of one comparison, in seconds.
SECONDS = 2.0
_PATIENCE = 4  # as in the grader process
_START = 120.0  # wall-clock seconds for a grader process to load its library
_PROGRAM = Path(__file__).with_name("grader_process.py")


def grade(gold: str, answer: str, seconds: float = SECONDS) -> bool:
    """Return whether ``answer`` equals ``gold``, in bounded time. Thread-safe.

    Args:
        gold: the right answer, as text or LaTeX, without a box.
        answer: the agent's answer, without a box. It is wrong if it is too long, cannot be parsed or takes too long.
        seconds: limit of the processor time (at most four times as much wall-clock time).
    """
    easy = compare(gold, answer)
    return _ask(*without_names(gold, answer), seconds) if easy is None else easy


def check_installed() -> None:
    """Raise :class:`~rollenv.core.MissingExtra` if math-verify is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtra(f"Grading mathematics needs math-verify: {install_hint('envs')}")


@functools.lru_cache(maxsize=16_384)
def _ask(gold: str, answer: str, seconds: float) -> bool:
    """Grade in a grader process; cached, because the members of a group often give the same answer."""
    return _POOL.grade(gold, answer, seconds)


class GraderPool:
    """At most ``size`` grader processes, started on demand.

    They end with this process, even if it is killed; a forked child of this process starts its own.
    """

    def __init__(self, size: int):
        self.size = size
        self._begin()

    def _begin(self) -> None:
        self._slots = threading.BoundedSemaphore(self.size)
        self._idle: list[_Grader] = []
        self._all: list[_Grader] = []

    def grade(self, gold: str, answer: str, seconds: float) -> bool:
        """Grade in one of the processes; wait while all are busy. A process that does not answer in time is killed."""
        check_installed()
        with self._slots:
            grader = self._take()
            verdict = None
            try:
                verdict = grader.ask(gold, answer, seconds)
            finally:
                if verdict is None:  # it hangs or died, or the wait was interrupted, so its next answer would be stale
                    self._all.remove(grader)
                    grader.kill()
                else:
                    self._idle.append(grader)
        return bool(verdict)

    def close(self) -> None:
        """Kill the grader processes; the next call starts new ones."""
        self._idle.clear()
        while self._all:
            self._all.pop().kill()

    def forget(self) -> None:
        """Forget the parent's grader processes in a forked child."""
        for grader in self._all:
            grader.let_go()
        self._begin()

    def _take(self) -> _Grader:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        grader = _Grader()
        self._all.append(grader)
        return grader


class _Grader:
    """A grader process, with one request at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            start_new_session=True,  # so that only this process receives Ctrl-C
        )
        self._ready = False

    def ask(self, gold: str, answer: str, seconds: float) -> bool | None:
        """Return the verdict; None if the process must be replaced."""
        if not self._ready:
            if self._line(_START) != "ready":
                raise RollenvError(f"the grader process did not start; try it by hand: {sys.executable} -P {_PROGRAM}")
            self._ready = True
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), json.dumps([gold, answer, seconds]).encode() + b"\n")
        except BrokenPipeError:
            return None
        line = self._line(_PATIENCE * seconds + 5)
        return None if line is None else line == "1"

    def _line(self, seconds: float) -> str | None:
        """Return the next line from the process; None if it exits or times out."""
        assert self._process.stdout is not None
        fd, deadline, got = self._process.stdout.fileno(), time.monotonic() + seconds, b""
        waiter = select.poll()
        waiter.register(fd, select.POLLIN)
        while not got.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not waiter.poll(left * 1000):
                return None
            chunk = os.read(fd, 100)
            if not chunk:
                return None
            got += chunk
        return got.decode().strip()

    def kill(self) -> None:
        """Kill the process and its child."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close_pipes()

    def let_go(self) -> None:
        """Close the pipes, but leave the process, which belongs to the parent of this one."""
        self._process.returncode = 0
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


#: The grader processes of this process.
_POOL = GraderPool(min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))
atexit.register(_POOL.close)
os.register_at_fork(after_in_child=_POOL.forget)
