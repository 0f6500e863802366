"""Environments in Ray actors, spread over the machines of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from rollenv.core import MissingExtra, UsageError
from rollenv.rollout.pool import Ending, Place, Worker, WorkerPool
from rollenv.rollout.processes import Link, Templates

try:
    import ray
    from ray.exceptions import RayError
except ImportError as error:
    raise MissingExtra(f"Ray workers need the ray extra: pip install 'rollenv[ray]' ({error})") from error


#: Seconds that an actor is given to end its process.
_END_SECONDS = 15.0


class RayWorkers(WorkerPool):
    """A pool of actors on the Ray cluster that this process is connected to (``ray.init`` first).

    An actor that is lost, with its node or alone, is started again wherever the cluster has room.

    Args:
        actors: how many.
        envs_per_actor: how many environments an actor holds at the same time, each in a thread of its own, in a process
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
        self.options = {"max_restarts": 0, "max_concurrency": 2 * envs_per_actor + 8, **options}
        self.actor_class = ray.remote(_Host)

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


#: What an actor answers: the encoded answer, or what its process ended with and who is to blame.
_Answer = tuple[bytes, None] | tuple[None, tuple[str, list[int]]]


class _Host:
    """The inside of an actor: it watches over a worker process on its machine and passes on what is said.

    So an environment meets the same walls as in :class:`~rollenv.rollout.processes.ProcessWorkers`.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.alive: set[socket.socket] = set()
        self.templates = Templates()
        self.link: Link | None = None
        self.last_heard, self.stopped = time.monotonic(), False

    async def start(self) -> None:
        """Start the process, in the actor's event loop."""
        loop = asyncio.get_running_loop()
        self.up: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[tuple[str, list[int]]] = loop.create_future()
        self.link = Link(self.templates, self.alive, self.threads, self._heard, self._over)
        await asyncio.wait({self.up, self.over}, return_when=asyncio.FIRST_COMPLETED)

    def _heard(self, state: str) -> None:
        if not state:
            self.last_heard = time.monotonic()
            if not self.up.done():
                self.up.set_result(None)
        self.stopped = state in tuple("TtZX")

    def _over(self, ended: str, blamed: list[int]) -> None:
        self.over.set_result((ended, blamed))

    async def do(self, operation: str, number: int, args: tuple[Any, ...]) -> _Answer:
        """Ask the worker process."""
        assert self.link is not None
        if not self.over.done():
            asking = self.link.ask(operation, number, args)
            await asyncio.wait({asking, self.over}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and not asking.cancelled():
                return asking.result(), None
        return None, self.over.result()

    async def ping(self) -> tuple[str, float, bool, tuple[str, list[int]] | None]:
        """The node, for how many seconds the process has not answered, whether it is stopped, and how it ended."""
        assert self.link is not None
        self.link.ping()
        await asyncio.sleep(0)
        over = self.over.result() if self.over.done() else None
        return ray.get_runtime_context().get_node_id(), time.monotonic() - self.last_heard, self.stopped, over

    async def end(self, how: Ending) -> tuple[str, list[int]]:
        """End the process; who is to blame."""
        assert self.link is not None
        self.link.end(how)
        return await asyncio.shield(self.over)


class WorkerActor(Worker):
    """A running actor."""

    def __init__(self, pool: RayWorkers, place: Place):
        super().__init__(pool, place)
        self.node = ""
        self._loop = asyncio.get_running_loop()
        options = {**pool.options, "num_cpus": 0} if place.alone else pool.options
        self.actor: Any = pool.actor_class.options(**options).remote(pool.envs_per_worker + 1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting = self._follow(self._start())

    def ask(self, operation: str, number: int, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        try:
            reference = self.actor.do.remote(operation, number, args)
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
        if not self._loop.is_closed():
            self._follow(self._end(how))

    def drop(self) -> None:
        if not self._loop.is_closed():
            for task in list(self._tasks):
                task.cancel()
        self._kill_actor()

    def _follow(self, coroutine: Any, name: str = "") -> asyncio.Task[Any]:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _start(self) -> None:
        try:
            await _reply(self.actor.start.remote())
        except RayError as error:
            self._gone(error)
        else:
            self.heard()

    async def _answer(self, reference: Any, answer: asyncio.Future[bytes]) -> None:
        try:
            data, over = await _reply(reference)
        except RayError as error:
            self._gone(error)
            return
        if data is None:
            self.over(*over)
            return
        self.heard()
        if not answer.done():
            answer.set_result(data)

    async def _pinged(self) -> None:
        try:
            self.node, silent, stopped, over = await _reply(self.actor.ping.remote())
        except RayError as error:
            self._gone(error)
            return
        if over is not None:
            self.over(*over)
        elif silent < 2 * self.pool.ping_every:
            self.heard()
        else:
            self.seen(stopped=stopped)

    async def _end(self, how: Ending) -> None:
        ended, blamed = "", []
        with contextlib.suppress(RayError, TimeoutError):
            ended, blamed = await asyncio.wait_for(_reply(self.actor.end.remote(how)), _END_SECONDS)
        self._kill_actor()
        if self.blamed is None:
            self.over(ended, blamed)

    def _gone(self, error: Exception) -> None:
        """The actor or its machine is lost."""
        if self.blamed is None:
            self.over(str(error).splitlines()[0], [])

    def _kill_actor(self) -> None:
        if ray.is_initialized():
            with contextlib.suppress(RayError, ValueError):
                ray.kill(self.actor)


async def _reply(reference: Any) -> Any:
    """What an actor's method returned.

    Raises:
        RayError: there will be none; Ray also cancels calls that have not begun when it kills an actor.
    """
    try:
        return await asyncio.wrap_future(reference.future())
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RayError("Ray cancelled a call of the actor") from None
