"""The common part of worker pools: slots for environments, replacement of dead workers, pings."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self

from rollenv.core import RollenvError, UsageError
from rollenv.env_spec import EnvSpec
from rollenv.registry import spec
from rollenv.rollout.types import Task
from rollenv.rollout.workers import messages
from rollenv.rollout.workers.base import EnvFailure, Seen, Shun, Views, nobody

#: Starts of one worker that may fail in a row before the pool gives up.
_START_ATTEMPTS = 5

#: Seconds that the first environments wait for the last worker, so that they are spread over all.
_SETTLE_SECONDS = 5.0

#: Seconds that a worker has for an answer when a deadline passed in it.
_ANSWER_SECONDS = 1.0

#: Seconds that a worker may take to start, at least.
_START_SECONDS = 120.0


#: Called with an answer, or with the error.
Answered = Callable[[Any], None]

#: Somebody who waits for a place, and whom he shuns.
_Waiter = tuple["asyncio.Future[Worker]", Shun]


class WorkersBroken(RollenvError):
    """Workers do not start."""


#: Why a worker is ended: "blamed", "frozen" (an environment holds the interpreter's lock), or for no fault of theirs.
Ending = Literal["unblamed", "blamed", "frozen"]


class Worker(ABC):
    """A running worker. A subclass starts it in its constructor, and calls :meth:`heard` when it answers, :meth:`seen`
    when what watches over it does, and :meth:`over` when it is gone.

    Args:
        place: which of the pool's workers it is.
    """

    def __init__(self, pool: WorkerPool, place: Place):
        self.pool, self.place, self.name = pool, place, place.name
        self.load = self.stuck = 0
        self.ready = False
        self.death = ""
        self.blamed: list[int] | None = None
        """The environments that may have ended it; None until that is known."""
        loop = asyncio.get_running_loop()
        self.up: asyncio.Future[None] = loop.create_future()
        self.last_heard = self.last_seen = loop.time()
        self._asked: dict[asyncio.Future[Any], int] = {}

    @abstractmethod
    def ask(self, operation: str, number: int, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Send a request to :meth:`EnvHost.answer`.

        Args:
            operation: see :meth:`EnvHost.answer`.
            args: of the operation.

        Returns:
            A future of the answer, or of EnvFailure "lost" if the worker ends first.

        Raises:
            UsageError: the arguments cannot be pickled.
        """

    def step_soon(self, number: int, action: str, done: Answered) -> None:
        """Send a step.

        Args:
            done: called once with the answer, or with the error.
        """

        def answered(future: asyncio.Future[Any]) -> None:
            done(self.lost(number) if future.cancelled() else future.exception() or future.result())

        self.ask("step", number, (action,)).add_done_callback(answered)

    def computed(self, number: int) -> float:
        """Seconds of processor time that an environment took since this was last asked, where that is known."""
        return 0.0

    @abstractmethod
    def ping(self) -> None:
        """Ping it."""

    @abstractmethod
    def kill(self, how: Ending) -> None:
        """End it by force; :meth:`over` is called later."""

    def drop(self) -> None:  # noqa: B027
        """Stop expecting answers: the pool is being closed."""

    @property
    def pid(self) -> int | None:
        """The process id if it is on this machine."""
        return None

    # -- what a subclass calls -----------------------------------------------------------------------------------------

    def follow(self, number: int, answer: asyncio.Future[bytes]) -> asyncio.Future[Any]:
        """Decode an answer once it arrives.

        Args:
            answer: future of the encoded answer.
        """
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[result] = number

        def answered(future: asyncio.Future[bytes]) -> None:
            self._asked.pop(result, None)
            if result.done() or future.cancelled():
                return
            try:
                result.set_result(messages.decode(future.result()))
            except RollenvError as error:
                result.set_exception(error)

        answer.add_done_callback(answered)
        return result

    def heard(self) -> None:
        """Record that it answered."""
        self.last_heard = self.last_seen = self.pool.time()
        if not self.ready and not self.death:
            self.ready = True
            self.place.failed_starts = 0
            self._is_up()
            self.pool.settle()
            self.pool.wake()

    def seen(self, *, stopped: bool) -> None:
        """It is alive, but may be busy."""
        if not stopped:
            self.last_seen = self.pool.time()

    def over(self, ended: str, blamed: list[int]) -> None:
        """Handle the end of the process: fail all open requests.

        Args:
            blamed: numbers of the environments that were busy.
        """
        self.end(ended)
        self.death, self.blamed = ended or self.death, blamed
        self.place.last_death = self.death
        asked, self._asked = self._asked, {}
        for future, number in asked.items():
            if not future.done():
                future.set_exception(self.lost(number))

    # -- what the pool and environments call ---------------------------------------------------------------------------

    async def answers(self) -> bool:
        """Whether it answers a ping now: not if the interpreter's lock is held or the process is stopped."""
        began = self.pool.time()
        while self.pool.time() < began + max(_ANSWER_SECONDS, 2 * self.pool.ping_every) and not self.death:
            self.ping()
            await asyncio.sleep(0.05)
            if self.last_heard > began:
                return True
        return False

    def lost(self, number: int) -> EnvFailure:
        """The error for an environment that is lost with it."""
        blamed = number in (self.blamed or ())
        who = "; it was this environment that ran last" if blamed else ""
        return EnvFailure("lost", f"worker {self.name} is gone: {self.death}{who}", blamed=blamed)

    def end(self, why: str, how: Ending = "unblamed") -> None:
        """Kill the process if it still runs, and let the pool replace it.

        Args:
            how: whether its environments are blamed.
        """
        if not self.death:
            self.death = why or "it ended"
            self._is_up()
            self.kill(how)
            self.pool.died(self)

    def _is_up(self) -> None:
        if not self.up.done() and not self.up.get_loop().is_closed():
            self.up.set_result(None)

    def leave(self, *, stuck: bool = False) -> None:
        """Record that an environment left, or is stuck in it forever."""
        if stuck:
            self.stuck += 1
        else:
            self.load -= 1
        if (self.place.alone or self in self.place.retired) and self.load == self.stuck:
            self.end("its environments are over" if not self.stuck else "an environment hung in it")
        self.pool.wake()


class Place:
    """One slot for a worker, through all its restarts."""

    def __init__(self, name: str, *, alone: bool = False):
        self.name, self.alone = name, alone
        self.worker: Worker | None = None
        self.retired: list[Worker] = []
        self.deaths = 0
        self.failed_starts = 0
        self.last_death = ""
        self.restart_at: float | None = None

    @property
    def running(self) -> list[Worker]:
        """The worker, and retired ones that still have environments."""
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
                f"{type(self).__name__} needs a worker, envs_per_worker > 0, 0 < ping_every < lost_after and "
                f"close_deadline > 0, got {len(names)}, {envs_per_worker}, {ping_every}, {lost_after}, {close_deadline}"
            )
        self.envs_per_worker = envs_per_worker
        self.ping_every, self.lost_after, self.close_deadline = ping_every, lost_after, close_deadline
        self.places = [Place(name) for name in names]
        self.numbers = itertools.count(1)
        self._alone: set[Place] = set()
        self._waiting: deque[_Waiter] = deque()
        self._waiting_alone: deque[_Waiter] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._settled = False

    @abstractmethod
    def start_worker(self, place: Place) -> Worker:
        """Start a worker; returns before it is ready."""

    async def open(self, task: Task, *, views: Views = False, shun: Shun = nobody, alone: bool = False) -> PooledEnv:
        """As :meth:`.base.Workers.open` has it; ``views`` may be "board", too.

        Args:
            views: whether to render after every turn, and how.
            shun: of a worker's name, whether to avoid that worker where there is another one.
            alone: let no other environment share the worker.
        """
        self._attach()
        how = (spec(task.env_id), task, views)
        place: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        (self._waiting_alone if alone else self._waiting).append((place, shun))
        self.wake()
        try:
            worker = await place
            if alone:
                await worker.up
        except BaseException:
            if place.done() and not place.cancelled() and not place.exception():
                place.result().leave()  # its caller has gone
            raise
        return PooledEnv(worker, next(self.numbers), how)

    def report(self) -> list[dict[str, Any]]:
        return [place.report() for place in (*self.places, *self._alone)]

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """End all workers now."""
        if self._watcher is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed already
                self._watcher.cancel()
        self._waiting.clear()
        self._waiting_alone.clear()
        running, loop_is_closed = self._running(), self._loop is not None and self._loop.is_closed()
        self._watcher = self._loop = None
        for worker in running:
            worker.end("the pool was closed")
            worker.drop()
            if not loop_is_closed:
                worker.over("", [])
        for place in self.places:
            place.worker = None
            place.retired.clear()
        self._alone.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def time(self) -> float:
        """Seconds of the event loop."""
        return self._loop.time() if self._loop is not None else 0.0

    def wake(self) -> None:
        """Give slots to the waiting callers, in their order."""
        if not self._settled:
            return
        for waiting, choose in ((self._waiting, self._choose), (self._waiting_alone, self._choose_alone)):
            while waiting:
                place, shun = waiting[0]
                if not place.done():
                    try:
                        worker = choose(shun)
                    except WorkersBroken as error:
                        place.set_exception(error)
                    else:
                        if worker is None:
                            break
                        worker.load += 1
                        place.set_result(worker)
                waiting.popleft()

    def settle(self) -> None:
        """Let everyone through if no worker is still starting."""
        if all(place.worker and place.worker.ready for place in self.places):
            self._settled = True

    def retire(self, worker: Worker) -> None:
        """An environment hangs in ``worker``: it gets no new ones, and ends when the others are done."""
        place = worker.place
        if place.worker is worker and not place.alone:
            place.retired.append(worker)
            self._start(place)
        if worker.load == worker.stuck:
            worker.end("an environment hung in it")

    def died(self, worker: Worker) -> None:
        """Replace a dead worker, with a growing delay if it dies before it is ready."""
        place = worker.place
        place.last_death = worker.death
        place.deaths += 1
        if worker in place.retired:
            place.retired.remove(worker)
        if place.worker is not worker:
            return
        place.worker = None
        self._alone.discard(place)
        place.failed_starts = 0 if worker.ready else place.failed_starts + 1
        if self._loop is None or place.alone:
            self.wake()
        elif place.failed_starts:
            place.restart_at = self._loop.time() + min(30.0, 0.1 * 2.0**place.failed_starts)
            self._settled = True
            self.wake()  # waiting callers may have to learn that nothing starts
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
        self._settled = False
        for place in self.places:
            self._start(place)
        loop.call_later(_SETTLE_SECONDS, self._settle_late)
        self._watcher = loop.create_task(self._watch())

    def _settle_late(self) -> None:
        self._settled = True
        self.wake()

    def _running(self) -> list[Worker]:
        return [worker for place in (*self.places, *self._alone) for worker in place.running]

    def _start(self, place: Place) -> None:
        place.restart_at = None
        place.worker = self.start_worker(place)

    def _choose(self, shun: Shun) -> Worker | None:
        """The least busy worker with room; a shunned one only if there is no other."""
        if all(place.failed_starts >= _START_ATTEMPTS for place in self.places):
            raise WorkersBroken(
                f"no worker starts: each ended {_START_ATTEMPTS} times, {self.places[0].last_death} the last. What "
                "they wrote is on standard error. A script that starts worker processes does so below "
                '`if __name__ == "__main__":`'
            )
        workers = [p.worker for p in self.places if p.worker and p.worker.ready and not p.worker.death]
        room = [worker for worker in workers if worker.load < self.envs_per_worker]
        return min(room, key=lambda worker: (shun(worker.name), worker.load), default=None)

    def _choose_alone(self, shun: Shun) -> Worker | None:
        """A fresh worker for one environment, if not too many of them are there."""
        if len(self._alone) >= len(self.places):
            return None
        place = Place(f"alone-{next(self.numbers)}", alone=True)
        self._alone.add(place)
        self._start(place)
        return place.worker

    async def _watch(self) -> None:
        """Ping the workers; end those that are stopped or out of reach; start those whose time has come."""
        loop = asyncio.get_running_loop()
        while True:
            asleep = loop.time()
            await asyncio.sleep(self.ping_every)
            self._forgive(loop.time() - asleep - self.ping_every)
            for place in self.places:
                if place.restart_at is not None and loop.time() >= place.restart_at:
                    self._start(place)
            for worker in self._running():
                silent = loop.time() - worker.last_seen
                if silent > (self.lost_after if worker.ready else max(_START_SECONDS, self.lost_after)):
                    worker.end(f"it was silent for {silent:.1f} s", "blamed")
                elif not worker.death:
                    worker.ping()

    def _forgive(self, late: float) -> None:
        """The event loop stood still (between collections, or an agent blocked it), so no message was read."""
        if late > self.ping_every:
            for worker in self._running():
                worker.last_seen = min(self.time(), worker.last_seen + late)


class PooledEnv:
    """An environment in a worker of a pool."""

    def __init__(self, worker: Worker, number: int, how: tuple[EnvSpec, Task, Views]):
        self._worker, self._number, self._how = worker, number, how
        self.worker = worker.name
        self._open = True

    async def reset(self) -> Seen:
        seen: Seen = await self._ask("reset", *self._how)
        return seen

    async def about(self) -> dict[str, Any]:
        """Build the environment on first use; see :meth:`HostedEnv.about`."""
        told: dict[str, Any] = await self._ask("about", *self._how)
        return told

    async def card(self) -> dict[str, Any]:
        """See :meth:`HostedEnv.card`."""
        told: dict[str, Any] = await self._ask("card")
        return told

    async def restart(self, seed: int | None, options: dict[str, Any]) -> Seen:
        """Reset with a seed and options of its own.

        Args:
            seed: of the episode; None continues the random stream.
        """
        seen: Seen = await self._ask("restart", seed, options)
        return seen

    async def step(self, action: str) -> Seen:
        seen: Seen = await self._ask("step", action)
        return seen

    def step_soon(self, action: str, done: Answered) -> None:
        """Send a step.

        Args:
            done: called once with the :class:`Seen`, or with the error.
        """
        if self._worker.death:
            done(self._worker.lost(self._number))
        else:
            self._worker.step_soon(self._number, action, done)

    def computed(self) -> float:
        """Seconds of processor time that it took since this was last asked."""
        return self._worker.computed(self._number)

    async def call(self, method: str, *args: Any) -> Any:
        return await self._ask("call", method, *args)

    async def _ask(self, operation: str, *args: Any) -> Any:
        """Send a request and wait for its answer."""
        if self._worker.death:
            raise self._worker.lost(self._number)
        return await self._worker.ask(operation, self._number, args)

    async def overdue(self, failure: EnvFailure) -> EnvFailure:
        worker = self._worker
        if not worker.death and await worker.answers():
            return failure
        worker.end("an environment holds its interpreter's lock", "frozen")
        for _ in range(100):
            if worker.blamed is not None:
                break
            await asyncio.sleep(0.05)
        if self._number in (worker.blamed or ()):
            return EnvFailure("hung", f"{failure}, and kept all others in its process from running", blamed=True)
        return worker.lost(self._number)

    def close(self, spent: Callable[[float], None] = lambda seconds: None) -> None:
        """Give it back.

        Args:
            spent: called with the seconds of computing that :meth:`computed` has not told, once it is closed; where
                it does not close in time, with the seconds that it got.
        """
        if not self._open:
            return
        self._open = False
        worker = self._worker
        if worker.death:
            worker.leave()
            return
        closing = worker.ask("close", self._number, ())
        late = asyncio.get_running_loop().call_later(worker.pool.close_deadline, self._stuck, closing, spent)

        def closed(future: asyncio.Future[Any]) -> None:
            late.cancel()
            if not future.cancelled():
                future.exception()
                spent(worker.computed(self._number))
                worker.leave()

        closing.add_done_callback(closed)

    def abandon(self) -> None:
        if self._open:
            self._open = False
            self._give_up()

    def _stuck(self, closing: asyncio.Future[Any], spent: Callable[[float], None]) -> None:
        closing.cancel()
        spent(self._worker.pool.close_deadline)
        self._give_up()

    def _give_up(self) -> None:
        self._worker.leave(stuck=True)
        if not self._worker.death:
            self._worker.pool.retire(self._worker)
