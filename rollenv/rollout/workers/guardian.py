"""Starts worker processes and watches them: a template process that forks, and a guardian for every worker.

The template has imported what workers need and never runs an environment, so a new worker takes milliseconds. The
guardian is a worker's parent, in its own session. It ends the worker, and all that the worker's environments
started, when the pool says so, when the worker ends and when the pool's process is gone, whatever thread that was.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from rollenv.rollout.workers import descendants
from rollenv.rollout.workers.host import BROKEN, serve
from rollenv.rollout.workers.marks import Marks

_SET_PDEATHSIG, _SET_SUBREAPER = 1, 36
_CURRENT_THREAD = re.compile(rb"Current thread (0x[0-9a-f]+)")

#: Milliseconds between two looks for processes whose guardian was killed.
_ORPHANS_EVERY = 1000

#: How often a thread is looked at to see what it does.
_LOOKS = 20

#: System calls in which threads wait for the interpreter's lock, by machine.
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine)


def template(requests: socket.socket, parent: int) -> None:
    """Run the template process: every request brings the two sockets of a new worker.

    Args:
        parent: process id; the template ends with it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended guardians are reaped by the system
    with contextlib.suppress(OSError):
        os.setsid()
    _prctl(_SET_SUBREAPER, 1)  # the children of a killed guardian are reparented to this process
    guardians: set[int] = set()
    pool = _pidfd(parent)
    poller = select.poll()
    for fd in (requests.fileno(), *([pool] if pool is not None else [])):
        poller.register(fd, select.POLLIN)
    while pool not in (ready := {fd for fd, _ in poller.poll(_ORPHANS_EVERY)}):
        descendants.kill_orphans(guardians)
        if not ready:
            continue
        try:
            message, fds, _, _ = socket.recv_fds(requests, 64, 2)
        except OSError:
            break
        if not message:
            break
        if (pid := os.fork()) == 0:
            requests.close()
            _become(functools.partial(_guard, fds[0], fds[1], int(message), pool))
        guardians.add(pid)
        for fd in fds:
            os.close(fd)
    descendants.kill_all_below()
    os._exit(0)


def _become(main: Callable[[], int]) -> None:
    """The rest of a forked process."""
    status = 1
    try:
        status = main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _guard(data: int, control: int, threads: int, pool: int | None) -> int:
    """Watch a worker until it ends, and report to the pool how it ended."""
    with contextlib.suppress(OSError):
        os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _prctl(_SET_SUBREAPER, 1)
    marks, crash = Marks(threads), tempfile.TemporaryFile()  # noqa: SIM115
    guardian = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(control)
        _become(lambda: _work(data, threads, marks, crash.fileno(), guardian))
    os.close(data)
    with socket.socket(fileno=control) as line:
        status, blamed = _watch(worker, line, marks, pool)
        descendants.kill_all_below()
        if status is not None:
            crash.seek(0)
            found = _CURRENT_THREAD.search(crash.read(4096))
            blamed = marks.blame(int(found[1], 16) if found else 0)
        with contextlib.suppress(OSError):
            line.sendall(json.dumps({"ended": _told(status), "blamed": blamed}).encode() + b"\n")
    return 0


def _work(data: int, threads: int, marks: Marks, crash_file: int, guardian: int) -> int:
    with contextlib.suppress(OSError):
        os.setsid()
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_SET_SUBREAPER, 1)
    if os.getppid() != guardian:
        return 0
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # if memory runs out, this process is killed before the training process
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    serve(socket.socket(fileno=data), threads, marks, crash_file)
    return 0


def _watch(worker: int, line: socket.socket, marks: Marks, pool: int | None) -> tuple[int | None, list[int]]:
    """Until the worker ends, or is to: the status it ended with if it did so by itself, and who is to blame if not."""
    pidfd = _pidfd(worker)
    poller = select.poll()
    for fd in (line.fileno(), pidfd, pool):
        if fd is not None:
            poller.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poller.poll(None if pidfd is not None else 50)}
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return status, []
        if pool in ready:
            return None, []
        if line.fileno() in ready:
            word = _word(line)
            if b"f" in word:
                return None, _holder(worker, marks)
            if b"b" in word:
                return None, marks.blame()
            if b"k" in word or not word:
                return None, []
            with contextlib.suppress(OSError):
                line.sendall(json.dumps({"state": _state(worker)}).encode() + b"\n")


def _word(line: socket.socket) -> bytes:
    """What the pool says; nothing if it is no more, however it ended."""
    try:
        return line.recv(64)
    except ConnectionError:
        return b""


def _holder(worker: int, marks: Marks) -> list[int]:
    """Whose call holds the interpreter's lock: the thread that computes, else the one that waits for something else.

    Who waits for the lock is in a futex nearly always: it wakes up now and then to ask for it, which takes time too.
    """
    calls = marks.calls()
    before = {tid: _ticks(worker, tid) for _, _, tid in calls}
    elsewhere = dict.fromkeys(before, 0)
    for _ in range(_LOOKS):
        for tid in elsewhere:
            elsewhere[tid] += _system_call(worker, tid) != _FUTEX
        time.sleep(0.1 / _LOOKS)
    others = [(number, tid) for number, _, tid in calls if elsewhere[tid] > 0.7 * _LOOKS]
    computing = [number for number, tid in others if _ticks(worker, tid) > before[tid]]
    if computing:
        return computing
    return [others[0][0]] if len(others) == 1 else marks.blame()


def _ticks(pid: int, tid: int) -> int:
    fields = _stat(f"{pid}/task/{tid}")
    return int(fields[11]) + int(fields[12]) if fields else 0


def _state(pid: int) -> str:
    """One letter, as in ``ps``: "R", "S", "D", "T" (stopped), "Z"; empty where that is not known."""
    fields = _stat(str(pid))
    return fields[0] if fields else ""


def _stat(path: str) -> list[str]:
    """The fields behind the name."""
    try:
        with open(f"/proc/{path}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _system_call(pid: int, tid: int) -> str:
    try:
        with open(f"/proc/{pid}/task/{tid}/syscall") as file:
            return file.read().split()[0]
    except (OSError, IndexError):
        return ""


def _told(status: int | None) -> str:
    if status is None:
        return ""
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    code = os.WEXITSTATUS(status)
    return "an environment closed or wrote the connection of its process" if code == BROKEN else f"exit code {code}"


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _prctl(option: int, value: Any) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)
