"""Environments in worker processes: a crash, a native hang or a kill costs a replay and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import secrets
import socket
import weakref
from collections import Counter
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from typing import Any

from rollenv.core import RollenvError, UsageError
from rollenv.rollout.workers import messages
from rollenv.rollout.workers.guardian import template
from rollenv.rollout.workers.pool import Answered, Ending, Place, Worker, WorkerPool

#: Seconds that a guardian is given to end what it watches over.
_END_SECONDS = 10.0


class Templates:
    """The template process that forks workers; started on first use, and again if it is gone."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: SpawnProcess | None = None
        self._state: list[socket.socket] = []
        self.close = weakref.finalize(self, self._end, self._state)

    def fork(self, threads: int) -> tuple[socket.socket, socket.socket]:
        """A new worker: the connection to it, and the one to its guardian."""
        if self._socket is None or self._process is None or not self._process.is_alive():
            self._start()
        assert self._socket is not None
        data, their_data = socket.socketpair()
        control, their_control = socket.socketpair()
        with their_data, their_control, contextlib.suppress(OSError):  # else both end at once, as for any that died
            socket.send_fds(self._socket, [str(threads).encode()], [their_data.fileno(), their_control.fileno()])
        return data, control

    def _start(self) -> None:
        self._end(self._state)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._state.append(self._socket)
        context = multiprocessing.get_context("spawn")
        args = (theirs, os.getpid())
        self._process = context.Process(target=template, args=args, name="rollenv-template", daemon=True)
        self._process.start()
        theirs.close()

    @property
    def exit_code(self) -> int | None:
        """The template's exit code, if it ended."""
        return None if self._process is None else self._process.exitcode

    @staticmethod
    def _end(state: list[socket.socket]) -> None:
        while state:
            state.pop().close()


#: Requests that are sent together: the worker begins with the first ones while others are made.
_TOGETHER = 16


class ProcessWorkers(WorkerPool):
    """A pool of processes on this machine, each with many environments, each in its own thread.

    What an environment started ends with it, or with its process at the latest.

    Args:
        processes: how many; by default one for each CPU core.
        envs_per_process: how many environments a process holds at the same time.
        ping_every: seconds between two pings.
        lost_after: a process that was stopped or out of reach for so many seconds is killed. One that is there and
            does not answer is busy: the deadlines of its environments hold for it.
        close_deadline: seconds that closing an environment may take before its process is replaced.
    """

    def __init__(
        self,
        processes: int | None = None,
        *,
        envs_per_process: int = 64,
        ping_every: float = 1.0,
        lost_after: float = 15.0,
        close_deadline: float = 30.0,
    ):
        count = len(os.sched_getaffinity(0)) if processes is None else processes
        super().__init__(
            [f"process-{i}" for i in range(count)],
            envs_per_worker=envs_per_process,
            ping_every=ping_every,
            lost_after=lost_after,
            close_deadline=close_deadline,
        )
        self.templates = Templates()
        #: The connections to the guardians of all processes that were started and have not ended.
        self.alive: set[socket.socket] = set()
        weakref.finalize(self, end_all, self.alive)

    def start_worker(self, place: Place) -> Worker:
        return WorkerProcess(self, place)

    def close(self) -> None:
        super().close()
        end_all(self.alive)
        self.templates.close()
        self.templates = Templates()


class WorkerProcess(Worker):
    """A running process and the connections to it."""

    def __init__(self, pool: ProcessWorkers, place: Place):
        super().__init__(pool, place)
        self.link = Link(pool.templates, pool.alive, pool.envs_per_worker + 1, self._heard, self.over)
        self._steps: dict[int, tuple[int, Answered]] = {}

    @property
    def pid(self) -> int | None:
        return self.link.pid

    def ask(self, operation: str, number: int, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        return self.follow(number, self.link.ask(operation, number, args))

    def step_soon(self, number: int, action: str, done: Answered) -> None:
        def answered(payload: bytes) -> None:
            del self._steps[request]
            try:
                value = messages.decode(payload)
            except RollenvError as error:
                value = error
            done(value)

        request = self.link.send("step", number, (action,), answered)
        self._steps[request] = (number, done)

    def computed(self, number: int) -> float:
        return self.link.computed.pop(number, 0) / 1e6

    def over(self, ended: str, blamed: list[int]) -> None:
        super().over(ended, blamed)
        steps, self._steps = self._steps, {}
        for number, done in steps.values():
            done(self.lost(number))

    def ping(self) -> None:
        self.link.ping()

    def _heard(self, state: str) -> None:
        if state:
            self.seen(stopped=state in "TtZX")
        else:
            self.heard()

    def kill(self, how: Ending) -> None:
        self.link.end(how)

    def drop(self) -> None:
        self.link.drop()


class Link:
    """The connections to a worker process and to its guardian, in an event loop.

    Args:
        alive: where the connection to the guardian is kept while it is there.
        heard: called with an empty text when the worker answers, with its state when the guardian does.
        over: called once, when both are gone, with what it ended with and who is to blame.
    """

    def __init__(
        self,
        templates: Templates,
        alive: set[socket.socket],
        threads: int,
        heard: Callable[[str], None],
        over: Callable[[str, list[int]], None],
    ):
        self.pid: int | None = None
        self._templates, self._alive, self._heard, self._over = templates, alive, heard, over
        self._pending: dict[int, tuple[int, Callable[[bytes], None]]] = {}
        self.computed: Counter[int] = Counter()
        """Microseconds of processor time of each environment, by number."""
        self._buffer = bytearray()
        data, self._control = templates.fork(threads)
        alive.add(self._control)
        self._ending = ""
        loop = asyncio.get_running_loop()
        self._writer: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._tasks = [loop.create_task(self._connect(data)), loop.create_task(self._follow_guardian())]

    def ask(self, operation: str, number: int, args: tuple[Any, ...]) -> asyncio.Future[bytes]:
        """Send a request; the future holds the answer, which never comes if the process ends first.

        Args:
            operation: see :meth:`EnvHost.answer`.
            args: of the operation.

        Raises:
            UsageError: the arguments cannot be pickled.
        """
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def answered(payload: bytes) -> None:
            if not future.done():
                future.set_result(payload)

        self.send(operation, number, args, answered)
        return future

    def send(self, operation: str, number: int, args: tuple[Any, ...], answered: Callable[[bytes], None]) -> int:
        """Send a request.

        Args:
            operation: see :meth:`EnvHost.answer`.
            args: of the operation.
            answered: called with the answer, unless the process ends first.

        Returns:
            The number of the request.

        Raises:
            UsageError: the arguments cannot be pickled.
        """
        request = secrets.randbits(63) | 1  # none that an environment could guess and answer for another
        try:
            data = messages.pack_request((request, operation, number, args))
        except Exception as error:
            raise UsageError(
                f"{operation} cannot be sent to a worker process: {error}. An environment that is played there is "
                "registered by the name of its class, in a module that can be imported"
            ) from error
        self._pending[request] = (number, answered)
        self._write(data)
        return request

    def ping(self) -> None:
        """Ping both."""
        self._write(messages.pack_request((0, "ping", 0, ())))
        self._say(b"p")

    def end(self, how: Ending = "unblamed") -> None:
        """Have the guardian end it and report the cause."""
        self._say({"unblamed": b"k", "blamed": b"b", "frozen": b"f"}[how])

    def drop(self) -> None:
        """Stop using both connections."""
        for task in self._tasks:
            if not task.get_loop().is_closed():
                task.cancel()
                task.get_loop().remove_reader(self._control)
        if self._writer is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._writer.abort()

    # -- the worker ----------------------------------------------------------------------------------------------------

    async def _connect(self, sock: socket.socket) -> None:
        self._writer, _ = await asyncio.get_running_loop().create_connection(lambda: _Protocol(self), sock=sock)
        self._flush()

    def _write(self, data: bytes) -> None:
        """Send it, together with whatever else is asked before the event loop turns to something else."""
        if not self._unsent and self._writer is not None:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(data)
        if len(self._unsent) == _TOGETHER:
            self._flush()

    def _flush(self) -> None:
        data, self._unsent = b"".join(self._unsent), []
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(data)

    def received(self, data: bytes) -> None:
        """Bytes came from the worker."""
        self._heard("")
        self._buffer += data
        at, header = 0, messages.ANSWER
        while len(self._buffer) >= at + header.size:
            length, request, microseconds = header.unpack_from(self._buffer, at)
            if length > messages.LARGEST_ANSWER or (request and request not in self._pending):
                self._ending = "an environment wrote into the connection of its process"
                self.end("blamed")
                return
            if len(self._buffer) < at + header.size + length:
                break
            payload = bytes(self._buffer[at + header.size : at + header.size + length])
            at += header.size + length
            if not request:
                self.pid = self.pid or (int(payload) if payload.isdigit() and len(payload) < 12 else None)
            else:
                number, answered = self._pending.pop(request)
                self.computed[number] += microseconds
                answered(payload)
        del self._buffer[:at]

    # -- the guardian --------------------------------------------------------------------------------------------------

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError):
            self._control.send(word)

    async def _follow_guardian(self) -> None:
        """Read what it says, to its end."""
        loop = asyncio.get_running_loop()
        self._control.setblocking(False)
        ended, blamed, rest = "", [], b""
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(self._control, 4096):
                *lines, rest = (rest + data).split(b"\n")
                for word in map(json.loads, lines):
                    if "state" in word:
                        self._heard(word["state"])
                    else:
                        ended, blamed = word["ended"], word["blamed"]
        self._forget()
        if not ended and self.pid is None and self._templates.exit_code is not None:
            ended = f"the process that starts them ended with exit code {self._templates.exit_code}"
        self._over(self._ending or ended, blamed)

    def _forget(self) -> None:
        self._alive.discard(self._control)
        self._control.close()
        if self._writer is not None:
            self._writer.abort()


class _Protocol(asyncio.Protocol):
    def __init__(self, link: Link):
        self._link = link

    def data_received(self, data: bytes) -> None:
        self._link.received(data)


def end_all(controls: set[socket.socket]) -> None:
    """End the processes behind these connections and wait until they are gone."""
    for control in controls:
        with contextlib.suppress(OSError):
            control.send(b"k")
    while controls:
        control = controls.pop()
        with contextlib.suppress(OSError):
            control.settimeout(_END_SECONDS)
            while control.recv(4096):
                pass
        control.close()
