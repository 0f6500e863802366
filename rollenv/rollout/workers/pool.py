"""The common part of worker pools: slots for environments, replacement of dead workers, pings.

An environment leaves its worker by ``close``, or by ``abandon`` if it hangs; both count it out with ``on_env_gone``. A
worker ends in two steps, in either order. ``end`` is the decision: it is silent, blocked, or not needed any more. It is
killed, and ``on_death`` puts another one into its slot. ``on_end`` is the news that it is gone: all its open requests
fail with ``lost``. A worker in which an environment hangs is first retired: it ends when its other environments have
left.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.registry import spec
from rollenv.rollout.types import Task
from rollenv.rollout.workers import messages
from rollenv.rollout.workers.base import Avoid, EnvFailure, EnvResult, Views, avoid_none
from rollenv.rollout.workers.supervisor import Slot, Supervisor, restart_delay

#: Consecutive failed starts of a worker after which the pool gives up.
_START_ATTEMPTS = 5

#: Minimum seconds for the answer to a ping after a deadline passed.
_ANSWER_SECONDS = 1.0

#: Minimum seconds for the start of a worker.
_START_SECONDS = 120.0

#: Callback for an answer or error.
Answered = Callable[[Any], None]


class WorkersBroken(RollenvError):
    """Workers do not start."""


class PoolWorker(ABC):
    """A running worker.

    A subclass starts it in its constructor and calls :meth:`on_message` for every message, :meth:`on_answer` for every
    answer, :meth:`mark_alive` for a sign of life, and :meth:`on_end` when it has ended.
    """

    def __init__(self, pool: WorkerPool, slot: PoolSlot):
        self.pool, self.slot, self.name = pool, slot, slot.name
        self.load = self.stuck = 0
        self.ready = self.used = False
        self.death = ""
        """Reason of its end; empty while it runs."""
        self.ended = False
        self.up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last_message = self.last_seen = asyncio.get_running_loop().time()
        self._requests = itertools.count(1)
        self._open: dict[int, tuple[int, Answered]] = {}
        self._blamed = False

    @abstractmethod
    def send(self, request: int, operation: str, number: int, args: tuple[Any, ...]) -> None:
        """Send a request to :meth:`EnvHost.answer`."""

    @abstractmethod
    def ping(self) -> None:
        """Send a ping."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the worker; :meth:`on_end` is called later."""

    def computed(self, number: int) -> float:
        """Return an environment's processor time since the last call, in seconds; 0 if unknown."""
        return 0.0

    @property
    def pid(self) -> int | None:
        """The process id, if it runs on this machine."""
        return None

    # -- called by subclasses ------------------------------------------------------------------------------------------

    def on_message(self) -> None:
        """Record a message of the worker."""
        self.last_message = self.last_seen = self.pool.time()
        if not self.ready and not self.death:
            self.ready = True
            self._resolve_up()
            self.slot.tried = True
            self.pool.on_change()

    def mark_alive(self) -> None:
        """Record that the worker is alive; it may be busy."""
        self.last_seen = self.pool.time()

    def on_answer(self, request: int, payload: bytes) -> None:
        """Pass an encoded answer to the caller."""
        _, done = self._open.pop(request)
        try:
            value = messages.decode(payload)
        except RollenvError as error:
            value = error
        done(value)

    def on_end(self, why: str, *, env_fault: bool = True) -> None:
        """Handle the worker's end: fail all open requests."""
        if self.ended:
            return
        self.ended = True
        if not self.death:
            self._blamed = env_fault and self.load == 1
        self.end(why)
        self.death = why or self.death
        self.slot.last_error = self.death
        requests, self._open = self._open, {}
        for number, done in requests.values():
            done(self.lost(number))

    # -- called by the pool and environments ---------------------------------------------------------------------------

    def request(self, operation: str, number: int, args: tuple[Any, ...], done: Answered) -> None:
        """Send a request.

        Args:
            done: called once with the answer or the error: EnvFailure "lost" if the worker ends first.
        """
        if self.death:
            done(self.lost(number))
            return
        self.used = True
        request = next(self._requests)
        self._open[request] = number, done
        try:
            self.send(request, operation, number, args)
        except BaseException:
            self._open.pop(request, None)
            raise

    def ask(self, operation: str, number: int, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Send a request and return a future of the answer; see :meth:`request`."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(answer: Any) -> None:
            if future.done():
                return
            if isinstance(answer, RollenvError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.request(operation, number, args, done)
        return future

    async def answers(self) -> bool:
        """Return whether the worker answers a ping: false if it is stopped or an environment blocks its interpreter."""
        began = self.pool.time()
        while self.pool.time() < began + max(_ANSWER_SECONDS, 2 * self.pool.ping_every) and not self.death:
            self.ping()
            await asyncio.sleep(0.05)
            if self.last_message > began:
                return True
        return False

    def lost(self, number: int) -> EnvFailure:
        """Build the error of an environment that is lost with the worker."""
        return EnvFailure("lost", f"worker {self.name} is gone: {self.death}", blamed=self._blamed)

    def end(self, why: str, *, env_fault: bool = False) -> None:
        """Kill the worker if it still runs, and let the pool replace it."""
        if not self.death:
            self.death = why or "it ended"
            self._blamed = self._blamed or (env_fault and self.load == 1)
            self._resolve_up()
            if not self.ended:
                self.kill()
            self.pool.on_death(self)

    def _resolve_up(self) -> None:
        if not self.up.done() and not self.up.get_loop().is_closed():
            self.up.set_result(None)

    def on_env_gone(self, *, stuck: bool = False) -> None:
        """Record that an environment was closed, or is stuck forever."""
        if stuck:
            self.stuck += 1
        else:
            self.load -= 1
        # A stuck environment still counts in `load`, so equal counts mean that none is left but those that hang.
        if (self.slot.alone or self in self.slot.retired) and self.load == self.stuck:
            self.end("an environment hung in it" if self.stuck else "its environments are closed")
        self.pool.wake()


class PoolSlot(Slot):
    """The place of a worker in its pool."""

    def __init__(self, name: str, *, alone: bool = False):
        super().__init__(name)
        self.alone = alone
        self.worker: PoolWorker | None = None
        self.retired: list[PoolWorker] = []
        """Replaced workers that still have environments."""

    @property
    def running(self) -> list[PoolWorker]:
        """The worker and the retired ones."""
        return [*self.retired, *([self.worker] if self.worker else [])]

    def report(self) -> dict[str, Any]:
        """Return the state as plain data."""
        state, envs, pid = "down", 0, None
        if worker := self.worker:
            state, envs, pid = "up" if worker.ready else "starting", worker.load, worker.pid
        return self.report_of(state, envs, pid)


class WorkerPool(Supervisor[PoolSlot]):
    """Workers with many environments each; used by one event loop at a time.

    A worker that dies, is stopped, or has an environment that hangs is replaced, and its episodes are replayed on
    others.

    Args:
        ping_every: seconds between two pings.
        lost_after: seconds of silence after which a worker is killed.
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
        super().__init__([PoolSlot(name) for name in names])
        self.numbers = itertools.count(1)
        self._alone: set[PoolSlot] = set()
        self._failed_alone, self._last_alone = 0, ""
        """Workers for one environment that ended before they were ready, in a row, and why the last did."""

    def start_worker(self, slot: PoolSlot) -> PoolWorker:
        """Start a worker; returns before it is ready."""
        raise NotImplementedError

    def start_slot(self, slot: PoolSlot) -> None:
        slot.worker = self.start_worker(slot)

    async def open(
        self, task: Task, *, views: Views = False, avoid: Avoid = avoid_none, alone: bool = False
    ) -> PooledEnv:
        """See :meth:`.base.Workers.open`; ``views`` may also be "board"."""
        self.attach()
        build_arguments = (spec(task.env_id), task, views)
        if alone:
            worker = await self.acquire(self._start_alone, "alone")
            try:
                await worker.up
            except BaseException:
                worker.on_env_gone()
                raise
        else:
            worker = await self.acquire(lambda: self._choose(avoid))
        return PooledEnv(worker, next(self.numbers), build_arguments)

    def give_back(self, taken: PoolWorker) -> None:
        taken.on_env_gone()

    def report(self) -> list[dict[str, Any]]:
        return [slot.report() for slot in (*self.slots, *self._alone)]

    async def aclose(self) -> None:
        self.close()

    def leave_closed_loop(self) -> None:
        self.close()

    def close(self) -> None:
        """End all workers now."""
        running, loop_is_closed = self._running(), self._loop is not None and self._loop.is_closed()
        self.detach()
        for worker in running:
            worker.end("the pool was closed")
            if not loop_is_closed:
                worker.on_end("the pool was closed")
        for slot in self.slots:
            slot.worker = None
            slot.retired.clear()
        self._alone.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def retire(self, worker: PoolWorker) -> None:
        """Replace a worker with a hanging environment; it gets no new ones and ends when its others are closed."""
        # It cannot be killed while its other environments play, and its thread cannot be ended by itself.
        slot = worker.slot
        if slot.worker is worker and not slot.alone:
            slot.retired.append(worker)
            self.start_slot(slot)
        if worker.load == worker.stuck:
            worker.end("an environment hung in it")

    def on_death(self, worker: PoolWorker) -> None:
        """Replace a dead worker, with a growing delay if it died before it was ready or used."""
        slot = worker.slot
        slot.losses, slot.last_error = slot.losses + 1, worker.death
        if worker in slot.retired:
            slot.retired.remove(worker)
        if slot.worker is not worker:
            return
        slot.worker = None
        slot.failures = 0 if worker.ready and worker.used else slot.failures + 1
        if slot.alone:
            self._failed_alone = 0 if worker.ready else self._failed_alone + 1
            self._last_alone = worker.death
        self._alone.discard(slot)
        if self._loop is None or slot.alone:
            self.wake()
        elif slot.failures:
            self.keep(self._start_later(slot))
            self.settle()  # it may have to fail the waiting callers
        else:
            self.start_slot(slot)

    async def _start_later(self, slot: PoolSlot) -> None:
        await asyncio.sleep(restart_delay(slot.failures, 0.2, 30.0))
        self.start_slot(slot)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _running(self) -> list[PoolWorker]:
        return [worker for slot in (*self.slots, *self._alone) for worker in slot.running]

    def _choose(self, avoid: Avoid) -> PoolWorker | None:
        """Return the least loaded worker with room; one to avoid only if there is no other."""
        workers = [slot.worker for slot in self.slots if slot.worker and slot.worker.ready and not slot.worker.death]
        if not workers and all(slot.failures >= _START_ATTEMPTS for slot in self.slots):
            raise _broken(self.slots[0].last_error)
        room = [worker for worker in workers if worker.load < self.envs_per_worker]
        chosen = min(room, key=lambda worker: (avoid(worker.name), worker.load), default=None)
        if chosen is not None:
            chosen.load += 1
        return chosen

    def _start_alone(self) -> PoolWorker | None:
        """Start a worker for one environment; return None if there are too many of them."""
        if self._failed_alone >= _START_ATTEMPTS:
            self._failed_alone -= 1  # the next caller may try once
            raise _broken(self._last_alone)
        if len(self._alone) >= len(self.slots):
            return None
        slot = PoolSlot(f"alone-{next(self.numbers)}", alone=True)
        self._alone.add(slot)
        self.start_slot(slot)
        assert slot.worker is not None
        slot.worker.load += 1
        return slot.worker

    async def watch(self) -> None:
        """Ping the workers and kill those that are silent."""
        async for late in self.ticks(self.ping_every):
            for worker in self._running():
                worker.last_seen = min(self.time(), worker.last_seen + late)
                silent = self.time() - worker.last_seen
                allowed = self.lost_after if worker.ready else max(_START_SECONDS, self.lost_after)
                if silent > allowed:
                    worker.end(f"it was silent for {silent:.1f} s", env_fault=True)
                elif not worker.death:
                    worker.ping()


def _broken(last: str) -> WorkersBroken:
    return WorkersBroken(
        f"no worker starts: {_START_ATTEMPTS} in a row ended at once, the last because {last}. What they wrote is on "
        'standard error. A script that starts worker processes does so below `if __name__ == "__main__":`'
    )


class PooledEnv:
    """An environment in a worker of a pool."""

    def __init__(self, worker: PoolWorker, number: int, build_arguments: tuple[EnvSpec, Task, Views]):
        self._worker, self._number, self._build_arguments = worker, number, build_arguments
        self.worker = worker.name
        self._is_open = True

    async def reset(self) -> EnvResult:
        result: EnvResult = await self._ask("reset", *self._build_arguments)
        return result

    async def step(self, action: str) -> EnvResult:
        result: EnvResult = await self._ask("step", action)
        return result

    def send(self, operation: str, args: Sequence[Any], done: Answered) -> None:
        """Send a request; "about" builds the environment on first use.

        Args:
            done: called once with the answer or the error, perhaps before this returns.
        """
        if operation == "about":
            args = self._build_arguments
        self._worker.request(operation, self._number, tuple(args), done)

    def computed(self) -> float:
        """Return the environment's processor time since the last call, in seconds."""
        return self._worker.computed(self._number)

    async def call(self, method: str, *args: Any) -> Any:
        return await self._ask("call", method, *args)

    def _ask(self, operation: str, *args: Any) -> asyncio.Future[Any]:
        return self._worker.ask(operation, self._number, args)

    async def diagnose_hang(self, failure: EnvFailure) -> EnvFailure:
        # A worker that answers a ping is well: the environment hangs by itself, in its own thread. One that does not is
        # held by an environment, perhaps another one, in code that never gives the interpreter back. It is ended, and
        # all its episodes are replayed elsewhere; only an environment that was alone in it is to blame for certain.
        worker = self._worker
        if not worker.death and await worker.answers():
            return failure
        worker.end("an environment holds its interpreter, so it does not answer", env_fault=True)
        lost = worker.lost(self._number)
        if lost.blamed:
            return EnvFailure("hung", f"{failure}, and kept all others in its process from running", blamed=True)
        return lost

    def close(self, spent: Callable[[float], None] = lambda seconds: None) -> None:
        """Close the environment.

        Args:
            spent: called after the close with the processor time that :meth:`computed` has not returned; with the
                deadline if the environment does not close in time.
        """
        if not self._is_open:
            return
        self._is_open = False
        worker = self._worker
        if worker.death:
            worker.on_env_gone()
            return
        closing = worker.ask("close", self._number, ())

        def give_up() -> None:
            closing.cancel()
            spent(worker.pool.close_deadline)
            self._retire()

        late = asyncio.get_running_loop().call_later(worker.pool.close_deadline, give_up)

        def closed(future: asyncio.Future[Any]) -> None:
            late.cancel()
            if not future.cancelled():
                future.exception()
                spent(worker.computed(self._number))
                worker.on_env_gone()

        closing.add_done_callback(closed)

    def abandon(self) -> None:
        if self._is_open:
            self._is_open = False
            self._retire()

    def _retire(self) -> None:
        self._worker.on_env_gone(stuck=True)
        if not self._worker.death:
            self._worker.pool.retire(self._worker)
