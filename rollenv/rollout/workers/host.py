"""The inside of a worker: environments by number, one call at a time each."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import pickle
import resource
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections import deque
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

_now, _thread_time = time.monotonic, time.thread_time
_umask, _getrlimit, _setrlimit = os.umask, resource.getrlimit, resource.setrlimit

#: Seconds in which a quick environment plays a turn.
_QUICK = 0.002

#: Seconds that a thread computes before another one may: beside an environment that computes for long, each turn of a
#: quick one waits for several of these.
_SWITCH = 0.0005

#: Answers that are sent together.
_TOGETHER = 64

#: Bytes that are read at a time.
_READ = 1 << 18

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
            operation: "reset", "about", "card", "restart", "step", "call" or "close".
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
        marks: shared memory that shows which environments are busy.
        crash_file: file descriptor for the traceback of a crash.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    os.dup2(2, 1)  # what an environment prints must not mix with the parent's output
    faulthandler.enable(crash_file, all_threads=False)
    sys.setswitchinterval(_SWITCH)
    marks.watch_exits()
    line = _Line(connection, marks)
    lanes = _Lanes(EnvHost(marks), line, threads)
    line.send([(0, str(os.getpid()).encode(), 0.0)])
    while (requests := line.receive(lanes.patience)) is not None:
        for request in requests:
            if request[1] == "ping":
                line.send([(0, b"", 0.0)])
            else:
                lanes.take(request)
        lanes.look()
    sys.stderr.flush()
    _exit(0)  # threads that still run an environment are not waited for


#: A request: its number, the operation, the number of the environment, arguments.
_Request = tuple[int, str, int, tuple[Any, ...]]

#: The numbers of requests, their encoded answers, and the seconds of processor time that they took.
_Answers = list[tuple[int, bytes, float]]


class _Lanes:
    """Carries out requests. Steps of quick environments share a lane: one thread plays them in their order and sends
    their answers together. Whatever else is asked, and environments that were slow, have a thread for each call.

    Args:
        threads: that play environments, one more than there are environments.
    """

    def __init__(self, host: EnvHost, line: _Line, threads: int):
        self._host, self._line = host, line
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="env")
        self._lock = _Lock()
        self._queue: deque[_Request] = deque()
        self._answers: _Answers = []
        self._slow: set[int] = set()
        self._player = 0
        """Which thread has the lane, counted; 0 for none."""
        self._players, self._began = 0, 0.0

    @property
    def patience(self) -> float | None:
        """Seconds until somebody has to look at the lane; None if it is empty."""
        return _QUICK if self._player else None

    def take(self, request: _Request) -> None:
        """Have a request carried out; those in the lane begin with :meth:`look`."""
        if request[1] == "step" and request[2] not in self._slow:
            self._queue.append(request)
        else:
            self._pool.submit(lambda: self._line.send([self._carried_out(request)], request[2]))

    def look(self) -> None:
        """Let another thread have the lane if an environment takes long."""
        answers: _Answers = []
        with self._lock:
            if self._player and _now() - self._began > _QUICK:
                answers, self._answers, self._player = self._answers, [], 0
            if self._queue and not self._player:
                self._players += 1
                self._player, self._began = self._players, _now()
                self._pool.submit(self._play, self._player)
        self._line.send(answers)

    def _play(self, player: int) -> None:
        """Carry out what is in the lane, until it is empty or another thread has it."""
        while True:
            with self._lock:
                if player != self._player:
                    return
                request = self._queue.popleft() if self._queue else None
                if request is None:
                    answers, self._answers, self._player = self._answers, [], 0
                self._began = _now()
            if request is None:
                self._line.send(answers)
                return
            answer = self._carried_out(request)
            with self._lock:
                if player == self._player:
                    self._answers.append(answer)
                    if len(self._answers) < _TOGETHER:
                        continue
                    answers, self._answers = self._answers, []
                else:
                    answers = [answer]
            self._line.send(answers, request[2])

    def _carried_out(self, request: _Request) -> tuple[int, bytes, float]:
        number, operation, env, args = request
        began, before = _now(), _thread_time()
        payload = self._host.answer(operation, env, args)
        took = _now() - began
        if operation == "close" or took < _QUICK / 2:
            self._slow.discard(env)
        elif took > _QUICK:
            self._slow.add(env)
        return number, payload, _thread_time() - before


class _Line:
    """The worker's end of the connection. If an environment breaks it, the worker exits and marks it as suspect."""

    def __init__(self, connection: socket.socket, marks: Marks):
        self._connection, self._marks = connection, marks
        self._send: Callable[[bytes], None] = connection.sendall
        self._receive = connection.recv
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        self._poll, self._buffer = poll.poll, bytearray()
        self._fd, self._inode, self._pid = connection.fileno(), os.fstat(connection.fileno()).st_ino, os.getpid()
        self._writing = threading.Lock()

    def send(self, answers: _Answers, number: int = 0) -> None:
        """Send answers.

        Args:
            number: of the environment that ran before.
        """
        if not answers:
            return
        if _getpid() != self._pid:  # an environment forked, and this is the child that should never have come here
            _exit(0)
        data = b"".join(messages.pack_answer(request, payload, seconds) for request, payload, seconds in answers)
        try:
            status = _fstat(self._fd)
            if status.st_ino != self._inode or not stat.S_ISSOCK(status.st_mode):
                raise OSError("the connection's file descriptor belongs to another file")
            with self._writing:
                self._send(data)
        except OSError:
            self._marks.suspect(number)
            _exit(BROKEN)

    def receive(self, patience: float | None) -> list[_Request] | None:
        """The next requests; none if there were none in time, and None when the connection ended.

        Args:
            patience: seconds to wait; None for as long as it takes.
        """
        try:
            if patience is not None and not self._poll(1000 * patience):
                return []
            data = self._receive(_READ)
        except OSError:
            return None
        self._buffer += data
        try:
            return [_loads(message) for message in self._whole()] if data else None
        except Exception as error:
            logger.error("a request cannot be read: %r", error)
            return None

    def _whole(self) -> list[bytes]:
        """The messages that have arrived as a whole."""
        found, at, head = [], 0, messages.REQUEST
        while len(self._buffer) >= at + head.size:
            end = at + head.size + head.unpack_from(self._buffer, at)[0]
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[at + head.size : end]))
            at = end
        del self._buffer[:at]
        return found
