"""Environments in Ray actors, spread over the machines of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

from rollenv.core import MissingExtra, RollenvError, UsageError
from rollenv.rollout.host import EnvHost, portable
from rollenv.rollout.pool import Place, Worker, WorkerPool

try:
    import ray
    from ray.exceptions import RayError
except ImportError as error:
    raise MissingExtra(f"Ray workers need the ray extra: pip install 'rollenv[ray]' ({error})") from error


class RayWorkers(WorkerPool):
    """A pool of actors on the Ray cluster that this process is connected to (``ray.init`` first).

    An actor that is lost, with its node or alone, is started again wherever the cluster has room.

    Args:
        actors: how many.
        envs_per_actor: how many environments an actor holds at the same time, each in a thread of its own.
        actor_options: for ``ray.remote``: ``num_cpus``, ``resources``, ``scheduling_strategy`` ("SPREAD" by default:
            over as many nodes as there are), ``runtime_env``, ...
        ping_every: seconds between two pings.
        lost_after: an actor that was silent for so many seconds is killed.
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
        self.actor_class = ray.remote(_Host).options(max_restarts=0, max_concurrency=envs_per_actor + 2, **options)

    def start_worker(self, place: Place) -> Worker:
        return WorkerActor(self, place)


@contextlib.contextmanager
def connected(actors: int) -> Iterator[RayWorkers]:
    """A pool on the cluster that RAY_ADDRESS names, or on one that is started here and ends with the block."""
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints what happens to its nodes
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        try:
            with RayWorkers(actors) as pool:
                yield pool
        finally:
            ray.shutdown()


class _Host:
    """The inside of an actor."""

    def __init__(self) -> None:
        self.host = EnvHost()

    def do(self, operation: str, number: int, args: tuple[Any, ...]) -> tuple[bool, Any]:
        """Whether it succeeded, and the answer or the error."""
        try:
            return True, self.host.do(operation, number, args)
        except RollenvError as error:
            return False, portable(error)

    def node(self) -> str:
        """Where it runs."""
        return str(ray.get_runtime_context().get_node_id())


class WorkerActor(Worker):
    """A running actor."""

    def __init__(self, pool: RayWorkers, place: Place):
        super().__init__(pool, place)
        self.node = ""
        self.actor: Any = pool.actor_class.remote()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.ping()

    def ask(self, operation: str, number: int, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        try:
            reference = self.actor.do.remote(operation, number, args)
        except (TypeError, AttributeError) as error:
            raise UsageError(f"{operation} cannot be sent to a Ray actor: {error}") from error
        return self._follow(self._answer(reference))

    def ping(self) -> None:
        if not any(task.get_name() == "ping" for task in self._tasks):
            self._follow(self._pinged(), "ping")

    def _follow(self, coroutine: Any, name: str = "") -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, reference: Any) -> Any:
        try:
            succeeded, value = await reference
        except RayError as error:
            self.end(str(error).splitlines()[0])
            raise self.lost() from error
        except asyncio.CancelledError:
            if self.death:
                raise self.lost() from None
            raise
        self.last_heard = asyncio.get_running_loop().time()
        if succeeded:
            return value
        raise value

    async def _pinged(self) -> None:
        try:
            self.node = await self.actor.node.remote()
        except RayError as error:
            self.end(str(error).splitlines()[0])
            return
        self.last_heard = asyncio.get_running_loop().time()
        if not self.ready:
            self.is_ready()

    def kill(self) -> str:
        if ray.is_initialized():
            with contextlib.suppress(RayError, ValueError):
                ray.kill(self.actor)
        for task in list(self._tasks):
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                if task is not asyncio.current_task():
                    task.cancel()
        return ""
