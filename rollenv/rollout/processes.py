"""Environments in worker processes: a crash, a native hang or a kill costs a replay and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import pickle
import socket
import weakref
from multiprocessing.context import SpawnProcess
from typing import Any

from rollenv.core import UsageError
from rollenv.rollout.host import HEADER, pack, serve
from rollenv.rollout.pool import Place, Worker, WorkerPool

_DISCONNECTED = "the connection to it ended"


class ProcessWorkers(WorkerPool):
    """A pool of processes on this machine, each with many environments in threads of their own.

    Args:
        processes: how many; by default one for each CPU core.
        envs_per_process: how many environments a process holds at the same time.
        ping_every: seconds between two pings.
        lost_after: a process that was silent for so many seconds is killed.
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
        self.alive: set[SpawnProcess] = set()
        weakref.finalize(self, _kill_all, self.alive)

    def start_worker(self, place: Place) -> Worker:
        return WorkerProcess(self, place)


class WorkerProcess(Worker, asyncio.Protocol):
    """A running process and the connection to it."""

    def __init__(self, pool: ProcessWorkers, place: Place):
        super().__init__(pool, place)
        self._requests = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        here, there = socket.socketpair()
        args = (there, os.getpid(), pool.envs_per_worker + 1)
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=serve, args=args, name=place.name, daemon=True)
        self.process.start()
        self._alive = pool.alive
        self._alive.add(self.process)
        there.close()
        self._connecting = asyncio.get_running_loop().create_task(self._connect(here))

    async def _connect(self, sock: socket.socket) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, sock=sock)

    @property
    def pid(self) -> int | None:
        return self.process.pid

    def ask(self, operation: str, number: int, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        request = next(self._requests)
        try:
            data = pack((request, operation, number, args))
        except Exception as error:
            raise UsageError(
                f"{operation} cannot be sent to a worker process: {error}. An environment that is played there is "
                "registered by the name of its class, in a module that can be imported"
            ) from error
        future = self._pending[request] = asyncio.get_running_loop().create_future()
        self._write(data)
        return future

    def ping(self) -> None:
        self._write(pack((0, "ping", 0, ())))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self.death:
            self._transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self.death:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self.last_heard = asyncio.get_running_loop().time()
        if not self.ready:
            self.is_ready()
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            end = HEADER.size + HEADER.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            request, succeeded, value = pickle.loads(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            future = self._pending.pop(request, None)
            if future is None or future.done():
                continue
            if succeeded:
                future.set_result(value)
            else:
                future.set_exception(value)

    def connection_lost(self, error: Exception | None) -> None:
        self.end(_DISCONNECTED)

    def kill(self) -> str:
        if self.death == _DISCONNECTED:
            self.process.join(0.05)  # its own exit code says more than that of a kill
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        self._alive.discard(self.process)
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._transport.abort()
        if code is not None:
            self.death = f"exit code {code}" if code >= 0 else f"signal {-code}"
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done() and not future.get_loop().is_closed():
                future.set_exception(self.lost())
        return self.death


def _kill_all(processes: set[SpawnProcess]) -> None:
    for process in list(processes):
        process.kill()
        process.join()
    processes.clear()
