"""The inside of a worker: environments by number, one call at a time each."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import pickle
import resource
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rollenv.env_spec import EnvSpec
from rollenv.rollout.types import Task
from rollenv.rollout.workers import descendants, messages
from rollenv.rollout.workers.base import EnvFailure, HostedEnv
from rollenv.rollout.workers.marks import Marks

logger = logging.getLogger(__name__)

# Bound here, so that an environment that patches them in its worker affects nothing else.
_getpid, _exit, _fstat, _loads, _Lock = os.getpid, os._exit, os.fstat, pickle.loads, threading.Lock

_umask, _getrlimit, _setrlimit = os.umask, resource.getrlimit, resource.setrlimit

#: How a worker ends whose connection an environment broke.
BROKEN = 70


class Surroundings:
    """Limits of the process. An environment may set them, which would affect all others in the process."""

    _NAMES = ("AS", "CPU", "DATA", "FSIZE", "NOFILE", "NPROC", "STACK")

    def __init__(self) -> None:
        known = [getattr(resource, f"RLIMIT_{name}", None) for name in self._NAMES]
        self._limits = {number: resource.getrlimit(number) for number in known if number is not None}
        self._umask = os.umask(0o022)
        os.umask(self._umask)

    def restore(self) -> None:
        """Restore them as far as the process has the rights."""
        _umask(self._umask)
        for number, limit in self._limits.items():
            if _getrlimit(number) != limit:
                with contextlib.suppress(OSError, ValueError):
                    _setrlimit(number, limit)


class EnvHost:
    """Environments by number. Calls of different environments may come from different threads."""

    def __init__(self, marks: Marks) -> None:
        self._envs: dict[int, HostedEnv] = {}
        self._locks: dict[int, threading.Lock] = {}
        self._children = descendants.Children()
        self._marks, self._surroundings = marks, Surroundings()

    def __len__(self) -> int:
        return len(self._envs)

    def answer(self, operation: str, number: int, args: tuple[Any, ...]) -> bytes:
        """Carry out an operation and return its encoded result; never raises.

        Args:
            operation: "reset", "about", "restart", "step", "call" or "close".
            number: of the environment.
            args: (spec, task, views) for "reset" and "about", which build it on first use; (seed, options) for
                "restart"; (action,) for "step"; (method, ...) for "call".
        """
        marks = self._marks
        with self._locks.setdefault(number, _Lock()):
            marks.begin(number)
            try:
                value = self._do(operation, number, args)
                env = self._envs.get(number)
                return messages.encode(env.task.env_id if env else "", value)
            except BaseException as error:
                return messages.encode_error(error)
            finally:
                if marks.changed():
                    self._children.note(number)
                    self._surroundings.restore()
                marks.end()

    def _do(self, operation: str, number: int, args: tuple[Any, ...]) -> Any:
        if operation == "close":
            return self._close(number)
        if operation in ("reset", "about") and number not in self._envs:
            env_spec: EnvSpec
            task: Task
            env_spec, task, views = args
            self._envs[number] = HostedEnv(env_spec, task, views)
        env = self._envs.get(number)
        if env is None:
            raise EnvFailure("lost", f"the worker has no environment {number}")
        return getattr(env, operation)(*([] if operation in ("reset", "about") else args))

    def _close(self, number: int) -> None:
        self._locks.pop(number, None)
        try:
            if env := self._envs.pop(number, None):
                env.close()
        finally:
            self._children.end(number)


def serve(connection: socket.socket, threads: int, marks: Marks, crash_file: int) -> None:
    """Run a worker process: answer requests until the connection ends.

    A request is (request, operation, number, args). "ping" is answered at once, to tell a stopped process, or one whose
    interpreter lock is held, from slow environments.

    Args:
        connection: to the pool.
        threads: that play environments.
        marks: shared memory that shows which environments are busy.
        crash_file: file descriptor for the traceback of a crash.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    os.dup2(2, 1)  # what an environment prints must not mix with the parent's output
    faulthandler.enable(crash_file, all_threads=False)
    marks.watch_exits()
    host = EnvHost(marks)
    line = _Line(connection, marks)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="env")

    def answer(request: int, operation: str, number: int, args: tuple[Any, ...]) -> None:
        line.send(request, host.answer(operation, number, args), number)

    line.send(0, str(os.getpid()).encode())
    while (message := line.receive()) is not None:
        if message[1] == "ping":
            line.send(0, b"")
        else:
            pool.submit(answer, *message)
    sys.stderr.flush()
    _exit(0)  # threads that still run an environment are not waited for


class _Line:
    """The worker's end of the connection. If an environment breaks it, the worker exits and marks it as suspect."""

    def __init__(self, connection: socket.socket, marks: Marks):
        self._connection, self._marks = connection, marks
        self._send: Callable[[bytes], None] = connection.sendall
        self._receive = connection.recv_into
        self._fd, self._inode, self._pid = connection.fileno(), os.fstat(connection.fileno()).st_ino, os.getpid()
        self._writing = threading.Lock()

    def send(self, request: int, payload: bytes, number: int = 0) -> None:
        """Answer a request; ``number`` is the environment that ran before."""
        if _getpid() != self._pid:  # an environment forked, and this is the child that should never have come here
            _exit(0)
        try:
            status = _fstat(self._fd)
            if status.st_ino != self._inode or not stat.S_ISSOCK(status.st_mode):
                raise OSError("the connection's file descriptor belongs to another file")
            with self._writing:
                self._send(messages.pack_answer(request, payload))
        except OSError:
            self._marks.suspect(number)
            _exit(BROKEN)

    def receive(self) -> tuple[int, str, int, tuple[Any, ...]] | None:
        """The next request; None when the connection ended."""
        header = self._read(messages.REQUEST.size)
        data = self._read(messages.REQUEST.unpack(header)[0]) if header else None
        if data is None:
            return None
        try:
            return _loads(data)  # type: ignore[no-any-return]
        except Exception as error:
            logger.error("a request cannot be read: %r", error)
            return None

    def _read(self, n: int) -> bytes | None:
        data = bytearray(n)
        view = memoryview(data)
        while view:
            try:
                got = self._receive(view)
            except OSError:
                return None
            if not got:
                return None
            view = view[got:]
        return bytes(data)
