"""The inside of a worker: environments by number, one call at a time each. Shared by processes and Ray actors."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rollenv.core import RollenvError
from rollenv.registry import EnvSpec
from rollenv.rollout.types import Task
from rollenv.rollout.workers import EnvFailure, HostedEnv

logger = logging.getLogger(__name__)

HEADER = struct.Struct("!I")
PR_SET_PDEATHSIG = 1


class EnvHost:
    """Environments by number. Calls of different environments may come from different threads."""

    def __init__(self) -> None:
        self._envs: dict[int, HostedEnv] = {}
        self._locks: dict[int, threading.Lock] = {}

    def __len__(self) -> int:
        return len(self._envs)

    def do(self, operation: str, number: int, args: tuple[Any, ...]) -> Any:
        """Carry out "open" (spec, task, views), "reset", "step" (action), "call" (method, ...) or "close".

        Raises:
            RollenvError: whatever goes wrong, in a form that can be sent on.
        """
        lock = self._locks.setdefault(number, threading.Lock())
        with lock:
            if operation == "open":
                self._open(number, *args)
                return None
            if operation == "close":
                self._locks.pop(number, None)
                if env := self._envs.pop(number, None):
                    env.close()
                return None
            env = self._envs.get(number)
            if env is None:
                raise EnvFailure("lost", f"the worker has no environment {number}")
            return getattr(env, operation)(*args)

    def _open(self, number: int, env_spec: EnvSpec, task: Task, views: bool) -> None:
        self._envs[number] = HostedEnv(env_spec, task, views)


def pack(message: Any) -> bytes:
    """A message as it is sent: its length, then its pickle."""
    data = pickle.dumps(message, protocol=5)
    return HEADER.pack(len(data)) + data


def serve(connection: socket.socket, parent: int, threads: int) -> None:
    """The main function of a worker process: answers requests until the connection ends.

    Requests are (request, operation, number, args), answers (request, succeeded, value). "ping" is answered at once, so
    that a process that is stopped or held by native code is told from one whose environments are slow.
    """
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    os.dup2(2, 1)  # what an environment prints must not mix with the parent's output
    host, writing = EnvHost(), threading.Lock()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="env")

    def send(message: Any) -> None:
        try:
            data = pack(message)
        except Exception as error:
            data = pack((message[0], False, EnvFailure("raised", f"what it returned cannot be sent: {error!r}")))
        with writing, contextlib.suppress(OSError):
            connection.sendall(data)

    def answer(request: int, operation: str, number: int, args: tuple[Any, ...]) -> None:
        try:
            reply: tuple[int, bool, Any] = (request, True, host.do(operation, number, args))
        except RollenvError as error:
            reply = (request, False, portable(error))
        except BaseException as error:
            reply = (request, False, EnvFailure("raised", repr(error)))
        send(reply)

    send((0, True, os.getpid()))
    with connection, connection.makefile("rb") as incoming:
        while header := incoming.read(HEADER.size):
            data = incoming.read(HEADER.unpack(header)[0])
            try:
                message = pickle.loads(data)
            except Exception as error:
                logger.error("a request cannot be read: %r", error)
                break
            if message[1] == "ping":
                send((message[0], True, len(host)))
            else:
                pool.submit(answer, *message)
    sys.stderr.flush()
    os._exit(0)  # threads that still run an environment are not waited for


def _die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, even if native code never returns."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def portable(error: RollenvError) -> RollenvError:
    """The error if it survives being sent, else one with its text."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return EnvFailure("raised", f"{type(error).__name__}: {error}")
