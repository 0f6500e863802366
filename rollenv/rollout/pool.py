"""What pools of workers have in common: places for environments, replacement of what died, pings."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections import deque
from types import TracebackType
from typing import Any, Self

from rollenv.core import RollenvError, UsageError
from rollenv.registry import spec
from rollenv.rollout.types import Task
from rollenv.rollout.workers import EnvFailure, Seen, Shun, nobody

#: Starts of one worker that may fail in a row before the pool gives up.
_START_ATTEMPTS = 5

#: Seconds that the first environments wait for the last worker, so that they are spread over all.
_SETTLE_SECONDS = 5.0

#: Seconds that a worker may take to start, at least.
_START_SECONDS = 120.0


class WorkersBroken(RollenvError):
    """Workers do not start."""


class Worker(ABC):
    """A running worker. A subclass starts it in its constructor and calls :meth:`is_ready` when it answers.

    Args:
        pool: what it belongs to.
        place: which of the pool's workers it is.
    """

    def __init__(self, pool: WorkerPool, place: Place):
        self.pool, self.place, self.name = pool, place, place.name
        self.load = self.stuck = 0
        self.ready = False
        self.death = ""
        self.last_heard = asyncio.get_running_loop().time()

    @abstractmethod
    def ask(self, operation: str, number: int, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Send a request to :meth:`EnvHost.do`; the future gives its answer, or EnvFailure "lost" if it ends first.

        Raises:
            UsageError: the request cannot be sent.
        """

    @abstractmethod
    def ping(self) -> None:
        """Ask whether it is there; the answer sets :attr:`last_heard`."""

    @abstractmethod
    def kill(self) -> str:
        """End it by force; what it ended with if that is known."""

    @property
    def pid(self) -> int | None:
        """The process id where it is on this machine."""
        return None

    def is_ready(self) -> None:
        """It answered for the first time: there is room in it."""
        self.ready = True
        self.place.failed_starts = 0
        self.pool.settle()
        for _ in range(self.pool.envs_per_worker):
            self.pool.wake()

    def lost(self) -> EnvFailure:
        """What everybody is told who waits for it."""
        return EnvFailure("lost", f"worker {self.name} is gone: {self.death}")

    def end(self, why: str) -> None:
        """Kill it, if it still runs, and let the pool replace it."""
        if not self.death:
            self.death = why  # at once, since killing it may lead here again
            self.death = self.kill() or why
            self.pool.died(self)

    def leave(self, *, stuck: bool = False) -> None:
        """An environment left, or is stuck in it for good."""
        if stuck:
            self.stuck += 1
        else:
            self.load -= 1
        if self in self.place.retired and self.load == self.stuck:
            self.end("an environment hung in it")
        self.pool.wake()


class Place:
    """One worker of the pool, through all its lives."""

    def __init__(self, name: str):
        self.name = name
        self.worker: Worker | None = None
        self.retired: list[Worker] = []
        self.deaths = 0
        self.failed_starts = 0
        self.last_death = ""
        self.restart_at: float | None = None

    @property
    def running(self) -> list[Worker]:
        """The worker and those that end when their environments are done."""
        return [*self.retired, *([self.worker] if self.worker else [])]

    def report(self) -> dict[str, Any]:
        """The state, as plain data."""
        worker = self.worker
        return {
            "worker": self.name,
            "state": "down" if worker is None else "up" if worker.ready else "starting",
            "envs": worker.load if worker else 0,
            "pid": worker.pid if worker else None,
            "deaths": self.deaths,
            "last_death": self.last_death,
        }


class WorkerPool(ABC):
    """Workers with many environments each; used by one event loop at a time.

    A worker that dies, stops answering pings or holds an environment that hangs is replaced; the manager replays its
    episodes on others.

    Args:
        names: of the workers.
        envs_per_worker: how many environments a worker holds at the same time.
        ping_every: seconds between two pings.
        lost_after: a worker that was silent for so many seconds is ended.
        close_deadline: seconds that closing an environment may take before its worker is replaced.
    """

    interruptible = True

    def __init__(
        self, names: list[str], *, envs_per_worker: int, ping_every: float, lost_after: float, close_deadline: float
    ):
        if not names or envs_per_worker < 1 or not 0 < ping_every < lost_after or close_deadline <= 0:
            raise UsageError(
                f"{type(self).__name__} needs a worker, room for an environment in it, 0 < ping_every < lost_after and "
                f"close_deadline > 0, got {len(names)}, {envs_per_worker}, {ping_every}, {lost_after}, {close_deadline}"
            )
        self.envs_per_worker = envs_per_worker
        self.ping_every, self.lost_after, self.close_deadline = ping_every, lost_after, close_deadline
        self.places = [Place(name) for name in names]
        self.numbers = itertools.count(1)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    @abstractmethod
    def start_worker(self, place: Place) -> Worker:
        """Start a worker; returns before it is ready."""

    async def open(self, task: Task, *, views: bool = False, shun: Shun = nobody) -> PooledEnv:
        self._attach()
        env_spec = spec(task.env_id)
        await self._settled.wait()
        while (worker := self._choose(shun)) is None:
            free: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(free)
            await free
        env = PooledEnv(worker, next(self.numbers))
        try:
            await env.ask("open", env_spec, task, views)
        except BaseException:
            env.close()
            raise
        return env

    def report(self) -> list[dict[str, Any]]:
        return [place.report() for place in self.places]

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """End all workers now."""
        if self._watcher is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed already
                self._watcher.cancel()
        self._watcher = self._loop = None
        for place in self.places:
            for worker in place.running:
                worker.end("the pool was closed")
            place.worker = None
            place.retired.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def wake(self) -> None:
        """There may be room for one that waits."""
        while self._waiting:
            free = self._waiting.popleft()
            if not free.done():
                free.set_result(None)
                return

    def settle(self) -> None:
        """Open the doors if no worker is still to come."""
        if all(place.worker and place.worker.ready for place in self.places):
            self._settled.set()

    def retire(self, worker: Worker) -> None:
        """An environment hangs in ``worker``: it gets no new ones, and ends when the others are done."""
        place = worker.place
        if place.worker is worker:
            place.retired.append(worker)
            self._start(place)
        if worker.load == worker.stuck:
            worker.end("an environment hung in it")

    def died(self, worker: Worker) -> None:
        """A worker is gone: start another one, later each time if it dies before it is ready."""
        place = worker.place
        place.last_death = worker.death
        place.deaths += 1
        if worker in place.retired:
            place.retired.remove(worker)
        if place.worker is not worker:
            return
        place.worker = None
        place.failed_starts = 0 if worker.ready else place.failed_starts + 1
        if self._loop is None:
            return
        if place.failed_starts:
            place.restart_at = self._loop.time() + min(30.0, 0.1 * 2.0**place.failed_starts)
            self.wake()  # whoever waits may have to be told that nothing starts
        else:
            self._start(place)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        """Start the workers, in the event loop that asks first."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and self._loop.is_closed():
            self.close()
        if self._loop is not None:
            raise UsageError("this pool of workers is used by another event loop; close it there first")
        self._loop = loop
        for place in self.places:
            self._start(place)
        self._settled = asyncio.Event()
        loop.call_later(_SETTLE_SECONDS, self._settled.set)
        self._watcher = loop.create_task(self._watch())

    def _start(self, place: Place) -> None:
        place.restart_at = None
        place.worker = self.start_worker(place)

    def _choose(self, shun: Shun) -> Worker | None:
        """The least busy worker with room; one that is shunned only if there is no other."""
        if all(place.failed_starts >= _START_ATTEMPTS for place in self.places):
            raise WorkersBroken(
                f"no worker starts: each ended {_START_ATTEMPTS} times, {self.places[0].last_death} the last. What "
                "they wrote is on standard error. A script that starts worker processes does so below "
                '`if __name__ == "__main__":`'
            )
        workers = [p.worker for p in self.places if p.worker and p.worker.ready and not p.worker.death]
        room = [worker for worker in workers if worker.load < self.envs_per_worker]
        return min(room, key=lambda worker: (shun(worker.name), worker.load), default=None)

    async def _watch(self) -> None:
        """Ping the workers; end those that are silent; start those whose time has come."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.ping_every)
            for place in self.places:
                if place.restart_at is not None and loop.time() >= place.restart_at:
                    self._start(place)
                for worker in place.running:
                    silent = loop.time() - worker.last_heard
                    if silent > (self.lost_after if worker.ready else max(_START_SECONDS, self.lost_after)):
                        worker.end(f"it was silent for {silent:.1f} s")
                    elif worker.ready:
                        worker.ping()


class PooledEnv:
    """An environment in a worker of a pool."""

    def __init__(self, worker: Worker, number: int):
        self._worker, self._number = worker, number
        self.worker = worker.name
        self._open = True
        worker.load += 1

    async def reset(self) -> Seen:
        seen: Seen = await self.ask("reset")
        return seen

    async def step(self, action: str) -> Seen:
        seen: Seen = await self.ask("step", action)
        return seen

    async def call(self, method: str, *args: Any) -> Any:
        return await self.ask("call", method, *args)

    async def ask(self, operation: str, *args: Any) -> Any:
        """Send a request and wait for its answer."""
        if self._worker.death:
            raise self._worker.lost()
        return await self._worker.ask(operation, self._number, args)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        worker = self._worker
        if worker.death:
            worker.leave()
            return
        closing = worker.ask("close", self._number, ())
        late = asyncio.get_running_loop().call_later(worker.pool.close_deadline, self._stuck, closing)

        def closed(future: asyncio.Future[Any]) -> None:
            late.cancel()
            if not future.cancelled():
                future.exception()
                worker.leave()

        closing.add_done_callback(closed)

    def abandon(self) -> None:
        if self._open:
            self._open = False
            self._give_up()

    def _stuck(self, closing: asyncio.Future[Any]) -> None:
        closing.cancel()
        self._give_up()

    def _give_up(self) -> None:
        self._worker.leave(stuck=True)
        if not self._worker.death:
            self._worker.pool.retire(self._worker)
