"""A process that forks worker processes.

It imports the modules of workers and never runs an environment, so a new worker starts in milliseconds. It reports the
end of each worker and kills processes that its environments left. All of them end with the template's parent process.
The forkserver of :mod:`multiprocessing` promises neither: what a killed worker started lives on, and so do the workers
while another child of the parent holds its pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterable
from multiprocessing.context import SpawnProcess
from typing import Protocol

import psutil

from rollenv.rollout.workers.host import ENDS, serve

_SET_PDEATHSIG, _SET_SUBREAPER = 1, 36

#: The variable that keeps Python from importing from the current folder.
_SAFE_PATH = "PYTHONSAFEPATH"

#: Maximum seconds to wait for killed processes.
_END_SECONDS = 10.0


class Forked(Protocol):
    """The owner of a forked worker, which receives the template's reports."""

    pid: int | None

    def on_end(self, why: str) -> None:
        """Handle the end of the process."""
        ...


class WorkerTemplate:
    """The template process, started on first use and restarted if it has ended. Used in an event loop.

    Args:
        python: another Python for it; by default this one.
    """

    def __init__(self, python: str = "") -> None:
        self.python = python
        self._socket: socket.socket | None = None
        self._process: SpawnProcess | _Started | None = None
        self._owners: dict[int, Forked] = {}
        self._numbers = itertools.count(1)
        self._resources: list[socket.socket | SpawnProcess | _Started] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close = weakref.finalize(self, _close, self._resources)

    def fork(self, owner: Forked, threads: int) -> tuple[int, socket.socket]:
        """Start a worker, and return its number, for :meth:`kill`, and its connection."""
        if self._socket is None:
            self._start()
        assert self._socket is not None
        number = next(self._numbers)
        self._owners[number] = owner
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):  # if the template has ended, _read() handles it
            socket.send_fds(self._socket, [json.dumps([number, threads]).encode()], [theirs.fileno()])
        return number, ours

    def kill(self, number: int) -> None:
        """Kill a worker; its owner gets a report of its end."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send(json.dumps([number, 0]).encode())

    def close(self) -> None:
        """End all workers and their descendants, and wait for them."""
        if self._socket is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)  # uvloop keeps a socket open while it has a reader
        self._close()

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = _Started(self.python, theirs) if self.python else self._spawn(theirs)
        self._process = process
        theirs.close()
        self._resources[:] = [self._socket, process]
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)

    def _spawn(self, theirs: socket.socket) -> SpawnProcess:
        """Start it in this Python, with this process's modules and ``sys.path``."""
        path_setting = os.environ.get(_SAFE_PATH)
        if vars(sys.modules["__main__"]).get("__file__") == "<stdin>":
            del sys.modules["__main__"].__file__  # spawned processes would look for a file of that name
        process = multiprocessing.get_context("spawn").Process(
            target=_run, args=(theirs, os.getpid(), path_setting), name="rollenv-template", daemon=True
        )
        os.environ[_SAFE_PATH] = "1"  # until it has this process's sys.path, it must not import from the current folder
        try:
            process.start()
        finally:
            _restore(path_setting)
        return process

    def _read(self) -> None:
        """Pass a report to the owner of the worker."""
        assert self._socket is not None
        assert self._process is not None
        try:
            report = self._socket.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            report = b""
        if report:
            number, pid, why = json.loads(report)
            if why is None and number in self._owners:
                self._owners[number].pid = pid
            elif number in self._owners:
                self._owners.pop(number).on_end(why)
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._process.join(_END_SECONDS)
        why = f"the process that starts workers ended with exit code {self._process.exitcode}"
        self._socket = self._process = None
        self._resources.clear()
        owners, self._owners = self._owners, {}
        for owner in owners.values():
            owner.on_end(why)


class _Started:
    """The template process in another Python."""

    def __init__(self, python: str, requests: socket.socket):
        words = [python, "-P", "-c", f"from {__name__} import main; main()", str(requests.fileno()), str(os.getpid())]
        self._program = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[requests.fileno()])

    def join(self, seconds: float) -> None:
        """Wait for its end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._program.wait(seconds)

    @property
    def exitcode(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._program.poll()


def _restore(path_setting: str | None) -> None:
    """Give the path setting to this process's children again."""
    os.environ.pop(_SAFE_PATH, None)
    if path_setting is not None:
        os.environ[_SAFE_PATH] = path_setting


def _close(resources: list[socket.socket | SpawnProcess | _Started]) -> None:
    for resource in resources:
        if isinstance(resource, socket.socket):
            resource.close()
        else:
            resource.join(_END_SECONDS)
    resources.clear()


# -- in the template process -------------------------------------------------------------------------------------------


def _run(requests: socket.socket, parent: int, path_setting: str | None) -> None:
    """Fork and kill workers on request until the requests or the parent process end."""
    _restore(path_setting)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setsid()
    _prctl(_SET_SUBREAPER, 1)  # orphans of a worker become children of this process
    child_ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    poller.register(child_ended, select.POLLIN)
    parent_ended = -1
    with contextlib.suppress(AttributeError, OSError):  # a forked child of the parent may hold the requests open
        parent_ended = os.pidfd_open(parent)
        poller.register(parent_ended, select.POLLIN)
    workers: dict[int, int] = {}
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if child_ended in ready:
            os.read(child_ended, 4096)
            _reap(workers, requests)
        if parent_ended in ready:
            break
        if requests.fileno() not in ready:
            continue
        try:
            message, fds, _, _ = socket.recv_fds(requests, 64, 1)
        except OSError:
            break
        if not message:
            break
        number, threads = json.loads(message)
        if fds:
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                requests.close()
                _work(fds[0], threads)
            os.close(fds[0])
            workers[pid] = number
            _report(requests, number, pid, None)
        else:
            for pid in [pid for pid, known in workers.items() if known == number]:
                os.kill(pid, signal.SIGKILL)
    _kill_children()
    os._exit(0)


def _work(connection: int, threads: int) -> None:
    """Run a worker to the end of this process."""
    try:
        with contextlib.suppress(OSError):
            os.setsid()
        die_with_parent()
        _prctl(_SET_SUBREAPER, 1)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # if memory runs out, kill this process before the training process
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        serve(socket.socket(fileno=connection), threads)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(1)


def _reap(workers: dict[int, int], requests: socket.socket) -> None:
    """Report the workers that ended and kill their orphans."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            number = workers.pop(ended[0], None)
            if number is None:
                continue
            _kill_children(keep=workers.keys())
            code = os.waitstatus_to_exitcode(ended[1])
            why = f"signal {-code}" if code < 0 else ENDS.get(code, f"exit code {code}")
            _report(requests, number, ended[0], why)


def _kill_children(keep: Iterable[int] = ()) -> None:
    """Kill all descendants except the children to keep and their descendants."""
    while children := [child for child in psutil.Process().children() if child.pid not in keep]:
        for process in [*children, *(each for child in children for each in child.children(recursive=True))]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if psutil.wait_procs(children, _END_SECONDS)[1]:
            return


def _report(requests: socket.socket, number: int, pid: int, why: str | None) -> None:
    with contextlib.suppress(OSError):
        requests.send(json.dumps([number, pid, why]).encode())


def die_with_parent() -> None:
    """Let this process be killed when its parent ends."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


def main() -> None:
    """Run the template process of another Python: its arguments are the requests' file and the parent process."""
    _run(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), os.environ.get(_SAFE_PATH))
