"""Environments in Ray actors, spread over the machines of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Coroutine, Iterator
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.needs import extra
from rollenv.rollout.workers.pool import PoolSlot, PoolWorker, WorkerPool
from rollenv.rollout.workers.processes import Link
from rollenv.rollout.workers.template import WorkerTemplate

with extra("ray", "Playing in Ray"):
    import ray
    from ray.exceptions import RayError

    from rollenv.rollout import ray_calls

#: Seconds that an actor may take to end its process.
_END_SECONDS = 15.0


# Not servers in actors, reached by `RemoteWorkers`. A server does not know the manager's deadlines: if
# an environment holds its process's interpreter, the neighbours there fail as "hung", and here they
# are lost and replayed. Its wire makes lists of an info's tuples and text of its dates, and takes only
# plain arguments of registered environments; Ray pickles the task with its spec.
class RayWorkers(WorkerPool):
    """A pool of actors on the Ray cluster that this process is connected to (``ray.init`` first).

    A lost actor is restarted wherever the cluster has room.

    Args:
        envs_per_actor: maximum environments of an actor; they run in threads of a process that the actor starts.
        actor_options: options of ``ray.remote``: ``num_cpus``, ``resources``, ``scheduling_strategy`` (by default
            "SPREAD", over all nodes), ``runtime_env``, ...
        ping_every: seconds between two pings.
        lost_after: seconds after which an unreachable actor, or one whose process is stopped, is killed. One that runs
            but does not answer is busy, and only the deadlines of its environments apply.
        close_deadline: seconds that closing an environment may take before its actor is replaced.
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
        self.actor_class = ray.remote(_Actor).options(max_restarts=0, max_concurrency=calls, **options)
        self.actors: dict[str, Any] = {}
        self.process_numbers = itertools.count()

    def start_worker(self, slot: PoolSlot) -> PoolWorker:
        return ActorProcess(self, slot)

    def actor_for(self, slot: PoolSlot) -> tuple[str, Any]:
        """Return the actor of a slot and its name; a worker for one environment uses the least loaded actor."""
        name = slot.name
        if slot.alone:
            name = min(self.slots, key=lambda s: (s.name not in self.actors, s.worker.load if s.worker else 0)).name
        if name not in self.actors:
            self.actors[name] = self.actor_class.remote(self.envs_per_worker + 1)
        return name, self.actors[name]

    def close(self) -> None:
        started = {worker.actor for worker in self._running() if isinstance(worker, ActorProcess) and worker.node}
        super().close()
        if started and ray.is_initialized():  # a killed actor may leave processes that environments started
            with contextlib.suppress(RayError):
                ray.wait([actor.close.remote() for actor in started], num_returns=len(started), timeout=_END_SECONDS)
        while self.actors:
            ray_calls.kill_actor(self.actors.popitem()[1])


class _Process:
    """A worker process of an actor."""

    def __init__(self, template: WorkerTemplate, threads: int) -> None:
        loop = asyncio.get_running_loop()
        self.last_message = time.monotonic()
        self.up: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()
        self.answers: dict[int, asyncio.Future[bytes]] = {}
        self.link = Link(template, threads, self._on_message, self._answered, self.over.set_result)

    def _on_message(self) -> None:
        self.last_message = time.monotonic()
        if not self.up.done():
            self.up.set_result(None)

    def _answered(self, request: int, payload: bytes, microseconds: int) -> None:
        self.answers.pop(request).set_result(payload)


class _Actor:
    """The Ray actor: forwards requests to worker processes on its machine.

    Environments are as isolated as in :class:`~rollenv.rollout.workers.processes.ProcessWorkers`.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.template = WorkerTemplate()
        self.processes: dict[int, _Process] = {}

    async def start(self, number: int) -> str:
        """Start a process with a given number, and return the id of the node."""
        self.processes[number] = process = _Process(self.template, self.threads)
        awaited: set[asyncio.Future[Any]] = {process.up, process.over}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        return str(ray.get_runtime_context().get_node_id())

    async def request(self, number: int, *request: Any) -> tuple[bytes, str]:
        """Send a request to a process; return the encoded answer, or the reason of the process's end."""
        process = self.processes[number]
        if not process.over.done():
            answer = process.answers[request[0]] = asyncio.get_running_loop().create_future()
            process.link.send(*request)
            await asyncio.wait({answer, process.over}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result(), ""
        return b"", process.over.result()

    async def ping(self, number: int) -> tuple[float, bool, str]:
        """Return the seconds since a process's last message, whether it is running, and the reason of its end."""
        process = self.processes[number]
        process.link.ping()
        over = process.over.result() if process.over.done() else ""
        return time.monotonic() - process.last_message, process.link.is_running(), over

    async def end(self, number: int) -> str:
        """Kill a process and return the reason of its end."""
        process = self.processes[number]
        process.link.kill()
        why: str = await asyncio.shield(process.over)
        self.processes.pop(number, None)
        return why

    async def close(self) -> None:
        """End all processes and their descendants."""
        self.template.close()


class ActorProcess(PoolWorker):
    """A process of an actor; its successors run on the same actor while that exists."""

    def __init__(self, pool: RayWorkers, slot: PoolSlot):
        super().__init__(pool, slot)
        self.node, self._actors, self._number = "", pool.actors, next(pool.process_numbers)
        self._loop = asyncio.get_running_loop()
        self._actor_name, self.actor = pool.actor_for(slot)
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = self._run(self._start())

    def send(self, request: int, operation: str, number: int, args: tuple[Any, ...]) -> None:
        try:
            reference = self.actor.request.remote(self._number, request, operation, number, args)
        except (TypeError, AttributeError) as error:
            raise UsageError(f"{operation} cannot be sent to a Ray actor: {error}") from error
        self._run(self._receive(request, reference))

    def ping(self) -> None:
        if self._starting.done() and not any(task.get_name() == "ping" for task in self._tasks):
            self._run(self._ping(), "ping")

    def kill(self) -> None:
        if not self._loop.is_closed():
            self._run(self._end())

    def on_end(self, why: str, *, env_fault: bool = True) -> None:
        super().on_end(why, env_fault=env_fault)
        if not self._loop.is_closed():
            for task in list(self._tasks):
                if task is not asyncio.current_task() and task.get_name() != "end":
                    task.cancel()

    def _run(self, work: Coroutine[Any, Any, None], name: str = "") -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _start(self) -> None:
        with self._actor_may_be_lost():
            self.node = await ray_calls.answer(self.actor.start.remote(self._number))
            self.on_message()

    async def _receive(self, request: int, reference: Any) -> None:
        with self._actor_may_be_lost():
            payload, why = await ray_calls.answer(reference)
            if why:
                self.on_end(why)
            elif not self.ended:
                self.on_message()
                self.on_answer(request, payload)

    async def _ping(self) -> None:
        with self._actor_may_be_lost():
            silent, running, why = await ray_calls.answer(self.actor.ping.remote(self._number))
            if why:
                self.on_end(why)
            elif running:
                self.mark_alive()
                self.last_message = max(self.last_message, self.pool.time() - silent)

    async def _end(self) -> None:
        try:
            with self._actor_may_be_lost():
                async with asyncio.timeout(_END_SECONDS):
                    self.on_end(await ray_calls.answer(self.actor.end.remote(self._number)))
        except TimeoutError:
            self._lose_actor()
            self.on_end("its actor does not answer", env_fault=False)

    @contextlib.contextmanager
    def _actor_may_be_lost(self) -> Iterator[None]:
        """Handle the loss of the actor or its machine, which is not an environment's fault."""
        try:
            yield
        except RayError as error:
            self._lose_actor()
            self.on_end(ray_calls.first_line(error), env_fault=False)

    def _lose_actor(self) -> None:
        if self._actors.get(self._actor_name) is self.actor:
            del self._actors[self._actor_name]
        ray_calls.kill_actor(self.actor)
