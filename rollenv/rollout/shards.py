"""One rollout over several managers, for more than some ten thousand turns a second or for several machines.

Each shard has a manager, which plays whole groups beside its own environments and engine. A coordinator with the same
interface gives a shard another group whenever it has room, and plays the groups of a lost shard again.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rollenv.agents.base import Agent, EnvHandle
from rollenv.agents.engines.base import Sampling
from rollenv.core.errors import UsageError
from rollenv.rollout.clock import Clock
from rollenv.rollout.group_runner import GRACE, RolloutBroken
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.health import Health
from rollenv.rollout.records.stats import RolloutStats
from rollenv.rollout.shard import Condition, Shard, ShardLost
from rollenv.rollout.types import Group, Trajectory
from rollenv.rollout.workers.supervisor import Slot, Supervisor, restart_delay

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Episodes of an evaluation that a shard gets at a time.
_CHUNK = 32

#: Maximum seconds before a lost shard is restarted, unless ``backoff`` is larger.
_LONGEST_REST = 60.0

#: Starts the shard with a given name.
Start = Callable[[str], Coroutine[Any, Any, Shard]]

#: A piece of work that a shard has: its slot, the shard, its key, and the task that waits for it.
_Given = tuple["ShardSlot", Shard, int, "asyncio.Task[T]"]


class ShardSlot(Slot):
    """The place of a shard, which may be lost and restarted."""

    def __init__(self, name: str):
        super().__init__(name)
        self.shard: Shard | None = None
        self.work: dict[int, asyncio.Task[Any]] = {}
        """Groups and chunks of episodes in play, by key."""
        self.placed = False
        """True once a shard has started."""
        self.groups = 0
        """Number of pieces of work that were completed."""
        self.conditions: list[Condition] = []
        """Last condition of each shard that was in this slot."""


class Fleet(Supervisor[ShardSlot], Agent):
    """The shards of a rollout.

    Args:
        capacity: groups that a shard plays at the same time.
        max_losses: how often a shard is restarted after a loss; after that it is lost for good.
        backoff: seconds before a lost shard is restarted, doubled with every loss, up to a minute.
        ping_every: seconds between two pings; 0 for none.
        lost_after: seconds after which a shard that does not answer a ping is lost.
        version: version of the weights that shards are built with.
    """

    def __init__(
        self,
        names: Sequence[str],
        start: Start,
        *,
        capacity: int = 64,
        max_losses: int = 3,
        backoff: float = 1.0,
        ping_every: float = 5.0,
        lost_after: float = 60.0,
        version: int = 0,
    ):
        if not names or capacity < 1:
            raise UsageError(f"a rollout needs at least 1 shard with room for 1 group, got {len(names)} and {capacity}")
        super().__init__([ShardSlot(name) for name in names])
        self.capacity, self.max_losses, self.backoff = capacity, max_losses, backoff
        self.ping_every, self.lost_after = ping_every, lost_after
        self.version = version
        #: Tokens computed or sampled for the finished groups.
        self.tokens = 0
        #: Number of groups that were restarted because their shard was lost.
        self.begun_again = 0
        self._start = start
        self._weights: Any = None
        self._updated = self._suspended = False
        self._failure: Exception | None = None
        self._ages: dict[int, int | None] = {}
        self._updating: asyncio.Lock | None = None

    # -- start and loss of shards ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the shards, once."""
        if self._updating is None:
            self._updating = asyncio.Lock()
            self.attach()
            self.settle()

    async def ready(self) -> None:
        """Start all shards and wait until each is running or lost for good.

        Raises:
            Exception: a shard could not be built.
        """
        await self.open()
        await self.acquire(self._all_started, "ready")

    def _all_started(self) -> bool | None:
        if all(slot.shard is not None or slot.losses > self.max_losses for slot in self.slots):
            return True
        if self._failure:
            raise self._failure
        return None

    async def close(self) -> None:
        """End all shards."""
        tasks = list(self._tasks)
        self.detach()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(slot.shard.close() for slot in self.slots if slot.shard), return_exceptions=True)
        for slot in self.slots:
            slot.shard = None

    def start_slot(self, slot: ShardSlot) -> None:
        self.keep(self._start_shard(slot, 0.0))

    async def _start_shard(self, slot: ShardSlot, delay: float) -> None:
        """Start a shard with the newest weights."""
        await asyncio.sleep(delay)
        try:
            shard = await self._start(slot.name)
            try:
                await self._install(slot, shard)
            except BaseException:
                await shard.close()
                raise
        except ShardLost as lost:
            self._on_loss(slot, lost)
        except Exception as error:
            if slot.placed:
                self._on_loss(slot, ShardLost(f"{slot.name} could not be built again: {error}"))
            else:  # a retry would not help
                self._failure = error
        self.wake()

    async def _install(self, slot: ShardSlot, shard: Shard) -> None:
        """Give a new shard the current weights and admit work to it; ping it if that takes long."""

        async def renewed() -> None:
            await shard.suspend()
            if self._updated:
                await shard.update(self._weights, self.version)
            if not self._suspended:
                await shard.resume()

        async with self._lock():
            renewing = asyncio.ensure_future(renewed())
            try:
                while not (await asyncio.wait({renewing}, timeout=self.lost_after))[0]:
                    await self._ping_shard(slot.name, shard)
                renewing.result()
            finally:
                renewing.cancel()
            slot.shard, slot.placed = shard, True
            slot.conditions.append((Health(), []))

    def lost(self, slot: ShardSlot, shard: Shard, why: ShardLost) -> None:
        """Restart a lost shard up to ``max_losses`` times. Each of its groups reports the loss; the first counts."""
        if slot.shard is not shard:
            return
        slot.shard = None
        for work in slot.work.values():  # its calls may never return
            work.cancel()
        self.keep(shard.close())
        self._on_loss(slot, why)

    def _on_loss(self, slot: ShardSlot, why: ShardLost) -> None:
        slot.losses, slot.last_error = slot.losses + 1, str(why)
        logger.warning("%s is lost (%d): %s", slot.name, slot.losses, why)
        if slot.losses <= self.max_losses:
            delay = restart_delay(slot.losses, self.backoff, max(self.backoff, _LONGEST_REST))
            self.keep(self._start_shard(slot, delay))
        self.wake()

    async def watch(self) -> None:
        """Ping the shards until cancelled."""
        if self.ping_every:
            async for _ in self.ticks(self.ping_every):
                await self.ping_all()

    async def ping_all(self) -> None:
        """Ping all shards and store their conditions."""
        await asyncio.gather(*(self._ping_one(slot, slot.shard) for slot in self.slots if slot.shard))

    def condition(self) -> Condition:
        """The last reported health of all shards together; names of workers are prefixed with their shard's."""
        whole, reports = Health(), []
        for slot in self.slots:
            prefix = f"{slot.name}/"
            for health, _ in slot.conditions:
                whole.absorb(health, prefix)
            if slot.shard:
                reports += [{**row, "worker": prefix + row["worker"]} for row in slot.conditions[-1][1]]
        whole.events = deque(sorted(whole.events), whole.events.maxlen)
        return whole, reports

    async def _ping_one(self, slot: ShardSlot, shard: Shard) -> None:
        try:
            condition = await self._ping_shard(slot.name, shard)
            if slot.shard is shard:
                slot.conditions[-1] = condition
        except ShardLost as lost:
            self.lost(slot, shard, lost)

    async def _ping_shard(self, name: str, shard: Shard) -> Condition:
        ping = asyncio.ensure_future(shard.ping())
        try:
            for _ in range(2):  # after a blocked event loop, the answer may be waiting when the first timeout expires
                await asyncio.wait({ping}, timeout=self.lost_after / 2)
            if ping.done():
                return ping.result()
        except ShardLost:
            raise
        except Exception as error:
            raise ShardLost(f"{name} cannot answer: {type(error).__name__}: {error}") from error
        finally:
            ping.cancel()
        raise ShardLost(f"{name} did not answer within {self.lost_after:g} s")

    # -- work --------------------------------------------------------------------------------------------------------

    def _give(self, key: int, work: Callable[[Shard], Coroutine[Any, Any, T]]) -> _Given[T] | None:
        """Give work to the shard with most room; return None if there is none.

        Raises:
            RolloutBroken: all shards are lost for good.
            Exception: a shard could not be built.
        """
        if self._failure:
            raise self._failure
        free = [s for s in self.slots if s.shard is not None and len(s.work) < self.capacity]
        if free:
            slot = min(free, key=lambda s: len(s.work))
            assert slot.shard is not None
            slot.work[key] = doing = asyncio.create_task(work(slot.shard))
            return slot, slot.shard, key, doing
        if all(slot.losses > self.max_losses for slot in self.slots):
            reasons = "; ".join(f"{slot.name}: {slot.last_error}" for slot in self.slots)
            raise RolloutBroken(f"all {len(self.slots)} shards are lost for good. {reasons}")
        return None

    def give_back(self, taken: Any) -> None:
        if taken is not True:
            slot, shard, key, doing = taken
            doing.cancel()
            shard.cancel(key)
            del slot.work[key]
            self.wake()

    async def do(self, key: int, work: Callable[[Shard], Coroutine[Any, Any, T]]) -> T:
        """Run a piece of work in a shard, and in another one if that is lost."""
        while True:
            slot, shard, _, doing = await self.acquire(lambda: self._give(key, work))
            # It ends in one of four ways: with an answer; because the shard is lost, as its own call or another one
            # found out (`lost` cancels all work of a shard), and then it begins again elsewhere; or because its caller
            # was cancelled, and then the shard must be told.
            try:
                done = await doing
                slot.groups += 1
                return done
            except ShardLost as lost:
                self.lost(slot, shard, lost)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if slot.shard is shard or (task is not None and task.cancelling()):
                    shard.cancel(key)
                    raise
            finally:
                del slot.work[key]
                self._ages.pop(key, None)
                self.wake()
            self.begun_again += 1

    def oldest_version(self, key: int) -> int | None:
        """The oldest version that sampled a token of a group in play, as of the last update."""
        return self._ages.get(key)

    # -- the interface of an agent ------------------------------------------------------------------------------------

    def start(self, env: EnvHandle, seed: int) -> NoReturn:
        """Refuse to start an episode: episodes start only in the shards."""
        raise UsageError("shards play with agents of their own: give groups to their ShardedManager")

    async def suspend(self) -> None:
        """Suspend sampling in all shards."""
        async with self._lock():
            self._suspended = True
            await self._all(lambda shard: shard.suspend())

    async def update_weights(self, weights: Iterable[tuple[str, Any]] | None = None) -> None:
        """Give new weights to all shards, including those that start later."""
        async with self._lock():
            self._weights, self._updated = self.pack_weights(weights), True
            self.version += 1
            ages = await self._all(lambda shard: shard.update(self._weights, self.version))
        self._ages = {key: oldest for each in ages for key, oldest in each.items()}

    async def resume(self) -> None:
        """Resume sampling in all shards."""
        async with self._lock():
            self._suspended = False
            await self._all(lambda shard: shard.resume())

    def _lock(self) -> asyncio.Lock:
        """The lock for changes of the weights or the suspension, so that a starting shard misses none."""
        if self._updating is None:
            raise UsageError("there is no shard yet: play something first, or await open()")
        return self._updating

    def pack_weights(self, weights: Iterable[tuple[str, Any]] | None) -> Any:
        """Prepare weights once for all shards."""
        return None if weights is None else list(weights)

    async def _all(self, work: Callable[[Shard], Coroutine[Any, Any, T]]) -> list[T]:
        """Return the answers of all running shards."""

        async def one(slot: ShardSlot, shard: Shard) -> list[T]:
            try:
                return [await work(shard)]
            except ShardLost as lost:
                self.lost(slot, shard, lost)
                return []

        running = [(slot, slot.shard) for slot in self.slots if slot.shard is not None]
        answers = await asyncio.gather(*(one(*pair) for pair in running), return_exceptions=True)  # await all of them
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [result for each in answers if isinstance(each, list) for result in each]


class ShardedManager(RolloutManager):
    """A manager that plays its groups in shards.

    Args:
        fleet: the shards; closing the manager ends them.
        run_dir: see :class:`RolloutManager`; ``health.json`` covers all shards.
    """

    def __init__(
        self, fleet: Fleet, *, clock: Clock = Clock.REAL, thread: bool = False, run_dir: str | Path | None = None
    ):
        super().__init__(fleet, clock=clock, thread=thread, run_dir=run_dir)
        self.fleet = fleet
        self.sampling: Sampling | None = None
        self._keys, self._closed = itertools.count(), False
        self._key_of: dict[int, int] = {}

    def with_agent(self, agent: Agent, *, keep_views: bool = False) -> ShardedManager:
        """See :meth:`RolloutManager.with_agent`. The shards use their own agents with the sampling of the one given.

        Args:
            keep_views: ignored; shards store drawings if the agent has a sampling.
        """
        other = copy.copy(self)
        other.stats, other.sampling = RolloutStats(), getattr(agent, "sampling", None)
        return other

    async def play_group(self, group: Group, size: int, extra_members: int = 0) -> Group:
        """See :meth:`RolloutManager.play_group`; the group stays empty until it is complete."""
        key = next(self._keys)
        self._key_of[group.number] = key
        try:
            played = await self.fleet.do(key, lambda shard: shard.play(key, group.task, size, extra_members))
        finally:
            self._key_of.pop(group.number, None)
        self.fleet.tokens += played.tokens
        group.trajectories = [replace(t, task=group.task, group=group.number) for t in played.trajectories]
        return group

    def oldest_version(self, group: Group) -> int | None:
        """See :meth:`RolloutManager.oldest_version`."""
        if group.trajectories:
            return group.oldest_version
        return self.fleet.oldest_version(self._key_of.get(group.number, -1))

    async def play_async(
        self, trajectories: Sequence[Trajectory], watch: Callable[[Trajectory], None] | None = None
    ) -> Sequence[Trajectory]:
        """See :meth:`RolloutManager.play`; ``watch`` is called when a shard returns a chunk of trajectories."""
        self.stats = RolloutStats()

        async def some(chunk: Sequence[Trajectory]) -> None:
            key = next(self._keys)
            played = await self.fleet.do(key, lambda shard: shard.play_many(list(chunk), self.sampling))
            self.fleet.tokens += played.tokens
            for mine, theirs in zip(chunk, played.trajectories, strict=True):
                for name in Trajectory.__slots__:
                    if name != "task":
                        setattr(mine, name, getattr(theirs, name))
                if watch:
                    watch(mine)

        async with self.watching():
            starts = range(0, len(trajectories), _CHUNK)
            await asyncio.gather(*(some(trajectories[i : i + _CHUNK]) for i in starts))
        return trajectories

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Start the shards and poll their health at the end of play."""
        await self.fleet.open()
        async with super().watching():
            try:
                yield
            finally:
                if self.run_dir:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.fleet.ping_all(), GRACE)

    def condition(self) -> Condition:
        """See :meth:`RolloutManager.condition`."""
        return self.fleet.condition()

    def close(self) -> None:
        """End the shards and close the event loop."""
        if not self._closed:
            self._closed = True
            self.run(self.fleet.close())
        super().close()
