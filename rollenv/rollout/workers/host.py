"""The inside of a worker process: environments by number, one call at a time each."""

from __future__ import annotations

import collections
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

#: Seconds in which a fast environment plays a turn.
_FAST = 0.002

#: Seconds without a request after which nobody looks whether the player is held up.
_QUIET = 0.1

#: Seconds that a thread computes before another one may: beside an environment that computes for long, each turn of a
#: fast one waits for several of these.
_SWITCH = 0.0005

#: The most answers that are sent together.
_MOST_ANSWERS = 64

#: The most bytes that are read at a time.
_READ = 1 << 18

#: The exit code of a worker whose connection an environment broke.
BROKEN = 70

#: A request: its number, the operation, the number of the environment, arguments.
_Request = tuple[int, str, int, tuple[Any, ...]]

#: The numbers of requests, their encoded answers, and the seconds of processor time that they took.
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
            args: (spec, task, views) for "reset" and "about", which build it on first use; (seed, options) for
                "restart"; (action,) for "step"; (method, ...) for "call".
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
                return messages.encode_error(error)


def serve(connection: socket.socket, threads: int) -> None:
    """Run a worker process: answer requests until the connection ends.

    A request is (request, operation, number, args). "ping" is answered at once, so a process whose interpreter is held
    by an environment differs from one with slow environments.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    os.dup2(2, 1)  # what an environment prints must not mix with the parent's output
    faulthandler.enable()
    sys.setswitchinterval(_SWITCH)
    line = _Connection(connection)
    line.send([(0, b"", 0.0)])
    _Players(EnvHost(), line, threads).watch()


class _Players:
    """Threads that carry out requests.

    One of them, the player, reads requests, plays the steps of fast environments in their order, and sends the answers
    together: a thread that only read would have to wake another one for each step. When an environment holds it up,
    another thread becomes the player. Other requests, and steps of environments that were slow, get a thread for each
    call.
    """

    def __init__(self, host: EnvHost, line: _Connection, threads: int):
        self._host, self._line = host, line
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="env")
        self._lock = threading.Lock()
        self._queue: collections.deque[_Request] = collections.deque()
        self._answers: _Answers = []
        self._slow: set[int] = set()
        self._player, self._began, self._last = 0, 0.0, 0.0
        """The number of the player; when the step began that it plays, 0 for none; when the last one began."""
        self._busy = threading.Event()

    def watch(self) -> None:
        """Start a player, and another one whenever an environment holds it up. Never returns."""
        self._pool.submit(self._play, self._player)
        while True:
            self._busy.wait()
            self._busy.clear()
            while not self._idle():
                time.sleep(_FAST)
                self._replace()

    def _idle(self) -> bool:
        with self._lock:  # a player that has just become it has not begun yet with what is in the queue
            return not self._began and not self._queue and time.monotonic() > self._last + _QUIET

    def _replace(self) -> None:
        """Let another thread play if an environment holds up the one that does."""
        with self._lock:
            if not self._began or time.monotonic() < self._began + _FAST:
                return
            answers, self._answers = self._answers, []
            self._player, self._began = self._player + 1, 0.0
            self._pool.submit(self._play, self._player)
        self._line.send(answers)

    def _play(self, player: int) -> None:
        """Carry out what is in the queue, and what comes, until another thread does."""
        while True:
            with self._lock:
                if player != self._player:
                    return
                request = self._queue.popleft() if self._queue else None
                self._began = time.monotonic() if request else 0.0
                if request is None or len(self._answers) >= _MOST_ANSWERS:
                    answers, self._answers = self._answers, []
                else:
                    answers = []
            self._line.send(answers)
            if request is None:
                self._read()
                continue
            answer = self._carry_out(request)
            with self._lock:
                if player == self._player:
                    self._answers.append(answer)
                    continue
            self._line.send([answer])

    def _read(self) -> None:
        """Wait for requests, and add them to the queue or give them to threads of their own."""
        for request in self._line.receive():
            if request[1] == "ping":
                self._line.send([(0, b"", 0.0)])
            elif request[1] == "step" and request[2] not in self._slow:
                self._queue.append(request)
            else:
                self._pool.submit(self._play_apart, request)
        self._last = time.monotonic()
        if not self._busy.is_set():
            self._busy.set()

    def _play_apart(self, request: _Request) -> None:
        self._line.send([self._carry_out(request)])

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
        """Return the next requests. The process ends with the connection."""
        try:
            data = self._connection.recv(_READ)
        except OSError:
            data = b""
        if not data:
            sys.stderr.flush()
            os._exit(0)  # threads that still run an environment are not waited for
        self._buffer += data
        found: list[_Request] = []
        at, head = 0, messages.REQUEST
        while len(self._buffer) >= at + head.size:
            end = at + head.size + head.unpack_from(self._buffer, at)[0]
            if len(self._buffer) < end:
                break
            try:
                found.append(pickle.loads(self._buffer[at + head.size : end]))
            except Exception as error:
                logger.error("a request cannot be read: %r", error)
                sys.stderr.flush()
                os._exit(0)
            at = end
        del self._buffer[:at]
        return found
