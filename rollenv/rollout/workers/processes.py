"""Environments in worker processes: a crash, a hang in native code or a kill costs only a replay."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import psutil

from rollenv.core.errors import UsageError
from rollenv.rollout.workers import messages
from rollenv.rollout.workers.pool import PoolSlot, PoolWorker, WorkerPool
from rollenv.rollout.workers.template import WorkerTemplate

#: Maximum requests that are sent together, so that the worker can start with the first ones.
_MOST_REQUESTS = 16


class ProcessWorkers(WorkerPool):
    """A pool of processes on this machine; each runs many environments in threads.

    Processes that an environment started end with its worker process at the latest.

    Args:
        processes: number of processes; by default one for each CPU core.
        envs_per_process: maximum environments of a process.
        ping_every: seconds between two pings.
        lost_after: seconds after which a stopped process is killed. One that runs but does not answer is busy, and
            only the deadlines of its environments apply.
        close_deadline: seconds that closing an environment may take before its process is replaced.
        python: another Python with this version of rollenv; by default this one.
    """

    def __init__(
        self,
        processes: int | None = None,
        *,
        envs_per_process: int = 64,
        ping_every: float = 1.0,
        lost_after: float = 15.0,
        close_deadline: float = 30.0,
        python: str = "",
    ):
        count = len(os.sched_getaffinity(0)) if processes is None else processes
        super().__init__(
            [f"process-{i}" for i in range(count)],
            envs_per_worker=envs_per_process,
            ping_every=ping_every,
            lost_after=lost_after,
            close_deadline=close_deadline,
        )
        self.template = WorkerTemplate(python)

    def start_worker(self, slot: PoolSlot) -> PoolWorker:
        return WorkerProcess(self, slot)

    def close(self) -> None:
        super().close()
        self.template.close()
        self.template = WorkerTemplate(self.template.python)


class WorkerProcess(PoolWorker):
    """A running process and the connection to it."""

    def __init__(self, pool: ProcessWorkers, slot: PoolSlot):
        super().__init__(pool, slot)
        self._link = Link(pool.template, pool.envs_per_worker + 1, self.on_message, self._answered, self.on_end)

    @property
    def pid(self) -> int | None:
        return self._link.pid

    def send(self, request: int, operation: str, number: int, args: tuple[Any, ...]) -> None:
        self._link.send(request, operation, number, args)

    def computed(self, number: int) -> float:
        return self._link.computed.pop(number, 0) / 1e6

    def ping(self) -> None:
        self._link.ping()
        if self._link.is_running():
            self.mark_alive()

    def kill(self) -> None:
        self._link.kill()

    def _answered(self, request: int, payload: bytes, microseconds: int) -> None:
        number, _ = self._open[request]
        self._link.computed[number] += microseconds  # before the caller gets the answer and reads the time
        self.on_answer(request, payload)


class Link(asyncio.Protocol):
    """The connection to a worker process, in an event loop.

    Args:
        threads: number of threads for environments in the process.
        answered: called with the number of a request, the encoded answer, and its processor time in microseconds.
        over: called once with the reason when the process has ended.
    """

    def __init__(
        self,
        template: WorkerTemplate,
        threads: int,
        on_message: Callable[[], None],
        answered: Callable[[int, bytes, int], None],
        over: Callable[[str], None],
    ):
        self.pid: int | None = None
        self.computed: Counter[int] = Counter()
        """Processor time of each environment in microseconds, by number."""
        self._template, self._on_message, self._answered, self._over = template, on_message, answered, over
        self._writer: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._buffer = bytearray()
        self._problem = ""
        self._number, connection = template.fork(self, threads)
        self._loop = asyncio.get_running_loop()
        self._connecting = self._loop.create_task(self._loop.create_connection(lambda: self, sock=connection))

    def send(self, request: int, operation: str, number: int, args: tuple[Any, ...]) -> None:
        """Send a request to :meth:`EnvHost.answer`."""
        try:
            data = messages.pack_request((request, operation, number, args))
        except Exception as error:
            raise UsageError(
                f"{operation} cannot be sent to a worker process: {error}. An environment that is played there is "
                "registered by the name of its class, in a module that can be imported"
            ) from error
        self._write(data)

    def ping(self) -> None:
        """Send a ping, which the process answers unless its interpreter is blocked."""
        self._write(messages.pack_request((0, "ping", 0, ())))

    def is_running(self) -> bool:
        """Return whether the process exists and is not stopped."""
        try:
            stopped = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)
            return self.pid is not None and psutil.Process(self.pid).status() not in stopped
        except psutil.Error:
            return False

    def kill(self) -> None:
        """Kill the process and its descendants."""
        self._template.kill(self._number)

    def on_end(self, why: str) -> None:
        """Handle the template's report that the process has ended."""
        if not self._loop.is_closed():
            self._connecting.cancel()
            if self._writer is not None:
                with contextlib.suppress(RuntimeError):
                    self._writer.abort()
        self._over(self._problem or why)

    def _write(self, data: bytes) -> None:
        """Send data, together with other data of the same iteration of the event loop."""
        if not self._unsent and self._writer is not None:
            self._loop.call_soon(self._flush)
        self._unsent.append(data)
        if len(self._unsent) == _MOST_REQUESTS:
            self._flush()

    def _flush(self) -> None:
        if self._writer is not None:
            data, self._unsent = b"".join(self._unsent), []
            if data and not self._writer.is_closing():
                self._writer.write(data)

    # -- called by the event loop --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._writer = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._on_message()
        self._buffer += data
        at, header = 0, messages.ANSWER
        while len(self._buffer) >= at + header.size and not self._problem:
            length, request, microseconds = header.unpack_from(self._buffer, at)
            if length > messages.LARGEST_ANSWER:
                self._fail()
                return
            if len(self._buffer) < at + header.size + length:
                break
            payload = bytes(self._buffer[at + header.size : at + header.size + length])
            at += header.size + length
            if request:
                try:
                    self._answered(request, payload, microseconds)
                except KeyError:  # no such request
                    self._fail()
        del self._buffer[:at]

    def _fail(self) -> None:
        self._problem = "an environment wrote into the connection of its process"
        self.kill()
