"""Environments in Ray actors, spread over the machines of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import Iterator
from typing import Any

from rollenv.core import UsageError
from rollenv.needs import extra
from rollenv.rollout.workers.pool import Ending, Place, Worker, WorkerPool
from rollenv.rollout.workers.processes import Link, Templates

with extra("ray", "Playing in Ray"):
    import ray
    from ray.exceptions import RayError

    from rollenv import ray_calls

#: Seconds that an actor is given to end its process.
_END_SECONDS = 15.0


class RayWorkers(WorkerPool):
    """A pool of actors on the Ray cluster that this process is connected to (``ray.init`` first).

    An actor that is lost, with its node or alone, is started again wherever the cluster has room.

    Args:
        envs_per_actor: how many environments an actor holds at the same time, each in its own thread, in a process
            that the actor starts.
        actor_options: for ``ray.remote``: ``num_cpus``, ``resources``, ``scheduling_strategy`` ("SPREAD" by default:
            over as many nodes as there are), ``runtime_env``, ...
        ping_every: seconds between two pings.
        lost_after: an actor that was out of reach, or its process stopped, for so many seconds is killed. One that is
            there and does not answer is busy: the deadlines of its environments hold for it.
        close_deadline: seconds that closing an environment may take before its actor is replaced.

    Raises:
        UsageError: Ray is not connected.
    """

    def __init__(
        self,
        actors: int,
        *,
        envs_per_actor: int = 64,
        actor_options: dict[str, Any] | None = None,
        ping_every: float = 2.0,
        lost_after: float = 30.0,
        close_deadline: float = 30.0,
    ):
        if not ray.is_initialized():
            raise UsageError("RayWorkers needs a cluster: call ray.init() first")
        super().__init__(
            [f"actor-{i}" for i in range(actors)],
            envs_per_worker=envs_per_actor,
            ping_every=ping_every,
            lost_after=lost_after,
            close_deadline=close_deadline,
        )
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **(actor_options or {})}
        calls = (actors + 1) * (envs_per_actor + 8)  # a queued call would look like a lost actor
        self.actor_class = ray.remote(_Host).options(max_restarts=0, max_concurrency=calls, **options)

        self.actors: dict[str, Any] = {}
        self.lives = itertools.count()

    def start_worker(self, place: Place) -> Worker:
        return WorkerActor(self, place)

    def actor_for(self, place: Place) -> tuple[str, Any]:
        """The actor of a place, and its name; a single environment's goes to the least used."""
        name = place.name
        if place.alone:
            name = min(self.places, key=lambda p: (p.name not in self.actors, p.worker.load if p.worker else 0)).name
        if name not in self.actors:
            self.actors[name] = self.actor_class.remote(self.envs_per_worker + 1)
        return name, self.actors[name]

    def close(self) -> None:
        super().close()
        while self.actors:
            ray_calls.kill_actor(self.actors.popitem()[1])


#: How a process ended and who is to blame.
_Over = tuple[str, list[int]]


class _Process:
    """A worker process of an actor."""

    def __init__(self, templates: Templates, alive: set[socket.socket], threads: int) -> None:
        loop = asyncio.get_running_loop()
        self.last_heard, self.stopped = time.monotonic(), False
        self.up: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[_Over] = loop.create_future()
        self.link = Link(templates, alive, threads, self._heard, lambda *over: self.over.set_result(over))

    def _heard(self, state: str) -> None:
        self.stopped = state in tuple("TtZX")
        if not state:
            self.last_heard = time.monotonic()
            if not self.up.done():
                self.up.set_result(None)

    async def first(self, future: asyncio.Future[Any]) -> bool:
        """Wait for this or the end; whether it came."""
        await asyncio.wait({future, self.over}, return_when=asyncio.FIRST_COMPLETED)
        return future.done() and not future.cancelled()


class _Host:
    """The inside of an actor: it watches over worker processes on its machine and passes on what is said.

    So an environment meets the same walls as in :class:`~rollenv.rollout.workers.processes.ProcessWorkers`.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.alive: set[socket.socket] = set()
        self.templates = Templates()
        self.processes: dict[int, _Process] = {}

    async def start(self, life: int) -> str:
        """Start a process under a number; the node that it is on."""
        self.processes[life] = process = _Process(self.templates, self.alive, self.threads)
        await process.first(process.up)
        return str(ray.get_runtime_context().get_node_id())

    async def do(self, life: int, operation: str, number: int, args: tuple[Any, ...]) -> tuple[bytes, _Over | None]:
        """Ask a process: its encoded answer, or how it ended."""
        process = self.processes[life]
        if not process.over.done():
            asking = process.link.ask(operation, number, args)
            if await process.first(asking):
                return asking.result(), None
        return b"", process.over.result()

    async def ping(self, life: int) -> tuple[float, bool, _Over | None]:
        """For how many seconds a process has not answered, whether it is stopped, and how it ended."""
        process = self.processes[life]
        process.link.ping()
        over = process.over.result() if process.over.done() else None
        return time.monotonic() - process.last_heard, process.stopped, over

    async def end(self, life: int, how: Ending) -> _Over:
        """End a process."""
        process = self.processes[life]
        process.link.end(how)
        over = await asyncio.shield(process.over)
        self.processes.pop(life, None)
        return over


class WorkerActor(Worker):
    """A process of an actor. Its successors run on the same actor while it exists."""

    def __init__(self, pool: RayWorkers, place: Place):
        super().__init__(pool, place)
        self.node, self._actors, self._life = "", pool.actors, next(pool.lives)
        self._loop = asyncio.get_running_loop()
        self._home, self.actor = pool.actor_for(place)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting = self._follow(self._start())

    def ask(self, operation: str, number: int, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        try:
            reference = self.actor.do.remote(self._life, operation, number, args)
        except (TypeError, AttributeError) as error:
            raise UsageError(f"{operation} cannot be sent to a Ray actor: {error}") from error
        answer: asyncio.Future[bytes] = self._loop.create_future()
        result = self.follow(number, answer)
        self._follow(self._answer(reference, answer))
        return result

    def ping(self) -> None:
        if self._starting.done() and not any(task.get_name() == "ping" for task in self._tasks):
            self._follow(self._pinged(), "ping")

    def kill(self, how: Ending) -> None:
        if not self._loop.is_closed() and self.blamed is None:
            self._follow(self._end(how))

    def drop(self) -> None:
        if not self._loop.is_closed():
            for task in list(self._tasks):
                task.cancel()

    def _follow(self, coroutine: Any, name: str = "") -> asyncio.Task[Any]:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _start(self) -> None:
        with self._noticing():
            self.node = await ray_calls.answer(self.actor.start.remote(self._life))
            self.heard()

    async def _answer(self, reference: Any, answer: asyncio.Future[bytes]) -> None:
        with self._noticing():
            data, over = await ray_calls.answer(reference)
            if over is not None:
                self._ended(over)
            elif not answer.done():
                self.heard()
                answer.set_result(data)

    async def _pinged(self) -> None:
        with self._noticing():
            silent, stopped, over = await ray_calls.answer(self.actor.ping.remote(self._life))
            if over is not None:
                self._ended(over)
            else:
                self.seen(stopped=stopped)
                self.last_heard = max(self.last_heard, self.pool.time() - silent)

    async def _end(self, how: Ending) -> None:
        try:
            with self._noticing():
                over = await asyncio.wait_for(ray_calls.answer(self.actor.end.remote(self._life, how)), _END_SECONDS)
                self._ended(over)
        except TimeoutError:
            self._lose_actor()
            self._ended(("its actor does not answer", []))

    def _ended(self, over: _Over) -> None:
        if self.blamed is None:
            self.over(*over)

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        """The actor or its machine may be lost meanwhile, for which no environment in it is to blame."""
        try:
            yield
        except RayError as error:
            self._lose_actor()
            self._ended((ray_calls.first_line(error), []))

    def _lose_actor(self) -> None:
        if self._actors.get(self._home) is self.actor:
            del self._actors[self._home]
        ray_calls.kill_actor(self.actor)
