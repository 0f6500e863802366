"""The program of a worker process: environments by number, with one call at a time each."""

from __future__ import annotations

import collections
import errno
import faulthandler
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rollenv.rollout.workers import messages
from rollenv.rollout.workers.base import EnvFailure, HostedEnv

logger = logging.getLogger(__name__)

#: Maximum seconds of a step of a fast environment.
_FAST = 0.002

#: Seconds without a request after which the check of the leader pauses.
_QUIET = 0.1

#: The interpreter's switch interval: while a slow environment computes, each step of a fast one waits for several.
_SWITCH = 0.0005

#: Maximum answers that are sent together.
_MOST_ANSWERS = 64

#: Maximum bytes that are read at a time.
_READ = 1 << 18

#: Exit codes of workers that an environment spoiled, for itself and others.
BROKEN, NO_FILES = 70, 71
ENDS = {
    BROKEN: "an environment closed the connection of its process",
    NO_FILES: "its environments left no file to open (RLIMIT_NOFILE)",
}

#: A request: its number, the operation, the number of the environment, arguments.
_Request = tuple[int, str, int, tuple[Any, ...]]

#: Numbers of requests, their encoded answers, and their processor time in seconds.
_Answers = list[tuple[int, bytes, float]]


class EnvHost:
    """Environments by number. Calls of different environments may come from different threads."""

    def __init__(self) -> None:
        self._envs: dict[int, HostedEnv] = {}
        self._locks: dict[int, threading.Lock] = collections.defaultdict(threading.Lock)

    def answer(self, operation: str, number: int, args: tuple[Any, ...]) -> bytes:
        """Carry out an operation and return its encoded result; never raises.

        Args:
            operation: "reset", "about", "card", "restart", "step", "call" or "close".
            args: (spec, task, views) for "reset" and "about", which build the environment on first use; (seed,
                options) for "restart"; (action,) for "step"; (method, ...) for "call".
        """
        with self._locks[number]:
            env_id = ""
            try:
                if operation == "close":
                    self._locks.pop(number, None)
                    if closing := self._envs.pop(number, None):
                        closing.close()
                    return messages.encode("", None)
                if operation in ("reset", "about"):
                    if number not in self._envs:
                        self._envs[number] = HostedEnv(*args)
                    args = ()
                env = self._envs.get(number)
                if env is None:
                    return messages.encode_error(EnvFailure("lost", f"the worker has no environment {number}"))
                env_id = env.task.env_id
                return messages.encode(env_id, getattr(env, operation)(*args))
            except BaseException as error:
                if _is_out_of_files(error):  # so would be all others here
                    os._exit(NO_FILES)
                return messages.encode_error(error)


def _is_out_of_files(error: BaseException | None) -> bool:
    while error is not None and getattr(error, "errno", 0) != errno.EMFILE:
        error = error.__cause__ or error.__context__
    return error is not None


def serve(connection: socket.socket, threads: int) -> None:
    """Run a worker process: answer requests until the connection ends.

    A request is (request, operation, number, args). "ping" is answered at once, which distinguishes a process with slow
    environments from one whose interpreter is blocked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    os.dup2(2, 1)  # what an environment prints must not mix with the parent's output
    faulthandler.enable()
    sys.setswitchinterval(_SWITCH)
    connected = _Connection(connection)
    connected.send([(0, b"", 0.0)])
    _Threads(EnvHost(), connected, threads).watch()


class _Threads:
    """Threads that carry out requests.

    One of them, the leader, reads requests, runs the steps of fast environments in their order, and sends the answers
    together: a thread that only reads would have to wake another one for each step. When an environment blocks the
    leader, another thread becomes the leader. Other requests, and steps of slow environments, get a thread for each
    call.
    """

    def __init__(self, host: EnvHost, connection: _Connection, threads: int):
        self._host, self._connection = host, connection
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="env")
        self._lock = threading.Lock()
        self._queue: collections.deque[_Request] = collections.deque()
        self._answers: _Answers = []
        self._slow: set[int] = set()
        self._leader = 0
        self._step_began = 0.0  # 0 while no step runs
        self._last_requests = 0.0
        self._busy = threading.Event()

    def watch(self) -> None:
        """Start a leader, and another one whenever an environment blocks it. Never returns."""
        self._pool.submit(self._lead, self._leader)
        while True:
            self._busy.wait()
            self._busy.clear()
            while not self._idle():
                time.sleep(_FAST)
                self._replace()

    def _idle(self) -> bool:
        with self._lock:  # a new leader may not have started with the queue yet
            return not self._step_began and not self._queue and time.monotonic() > self._last_requests + _QUIET

    def _replace(self) -> None:
        """Make another thread the leader if an environment blocks the current one."""
        with self._lock:
            if not self._step_began or time.monotonic() < self._step_began + _FAST:
                return
            answers, self._answers = self._answers, []
            self._leader, self._step_began = self._leader + 1, 0.0
            self._pool.submit(self._lead, self._leader)
        self._connection.send(answers)

    def _lead(self, leader: int) -> None:
        """Carry out the requests in the queue and new ones until another thread is the leader."""
        while True:
            with self._lock:
                if leader != self._leader:
                    return
                request = self._queue.popleft() if self._queue else None
                self._step_began = time.monotonic() if request else 0.0
                if request is None or len(self._answers) >= _MOST_ANSWERS:
                    answers, self._answers = self._answers, []
                else:
                    answers = []
            self._connection.send(answers)
            if request is None:
                self._read()
                continue
            answer = self._carry_out(request)
            with self._lock:
                if leader == self._leader:
                    self._answers.append(answer)
                    continue
            self._connection.send([answer])

    def _read(self) -> None:
        """Wait for requests, and queue them or submit them to other threads."""
        for request in self._connection.receive():
            if request[1] == "ping":
                self._connection.send([(0, b"", 0.0)])
            elif request[1] == "step" and request[2] not in self._slow:
                self._queue.append(request)
            else:
                self._pool.submit(self._answer, request)
        self._last_requests = time.monotonic()
        if not self._busy.is_set():
            self._busy.set()

    def _answer(self, request: _Request) -> None:
        self._connection.send([self._carry_out(request)])

    def _carry_out(self, request: _Request) -> tuple[int, bytes, float]:
        number, operation, env, args = request
        began, before = time.monotonic(), time.thread_time()
        payload = self._host.answer(operation, env, args)
        seconds = time.monotonic() - began
        if operation == "close" or seconds < _FAST / 2:
            self._slow.discard(env)
        elif seconds > _FAST:
            self._slow.add(env)
        return number, payload, time.thread_time() - before


class _Connection:
    """The worker's end of the connection. The worker exits if an environment breaks it."""

    def __init__(self, connection: socket.socket):
        self._connection, self._buffer = connection, bytearray()
        self._pid = os.getpid()
        self._writing = threading.Lock()

    def send(self, answers: _Answers) -> None:
        """Send answers."""
        if not answers:
            return
        if os.getpid() != self._pid:  # an environment forked, and its child returned from the call
            os._exit(0)
        data = b"".join(messages.pack_answer(request, payload, seconds) for request, payload, seconds in answers)
        try:
            with self._writing:
                self._connection.sendall(data)
        except OSError:
            os._exit(BROKEN)

    def receive(self) -> list[_Request]:
        """Return the next requests. Exit if the connection has ended."""
        try:
            data = self._connection.recv(_READ)
        except OSError:
            data = b""
        if not data:
            sys.stderr.flush()
            os._exit(0)  # do not wait for threads that still run an environment
        self._buffer += data
        requests: list[_Request] = []
        at, head = 0, messages.REQUEST
        while len(self._buffer) >= at + head.size:
            end = at + head.size + head.unpack_from(self._buffer, at)[0]
            if len(self._buffer) < end:
                break
            try:
                requests.append(pickle.loads(self._buffer[at + head.size : end]))
            except Exception as error:
                logger.error("a request cannot be read: %r", error)
                sys.stderr.flush()
                os._exit(0)
            at = end
        del self._buffer[:at]
        return requests
