"""Rollout during training with bounded staleness, and batching of long tasks."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from rollenv.agents.base import update_weights_of
from rollenv.core.errors import UsageError
from rollenv.rollout.filters import Filter
from rollenv.rollout.group_runner import GroupRunner
from rollenv.rollout.manager import RolloutManager, check_sizes
from rollenv.rollout.types import Group, Task


class RolloutStream:
    """Keeps playing while the trainer trains; use it with ``async with``.

    Groups are admitted as in AReaL (arXiv 2505.24298, equation 3): after ``v`` updates, at most
    ``(v + max_staleness + 1) * groups`` groups have been started, not counting dropped ones. A group that took so long
    that it became staler is dropped and its task restarted: no token that :meth:`next_batch` returns is older than
    ``max_staleness`` updates. A group with too few complete members is dropped, and the next task started.

    Args:
        manager: its agent is Updatable.
        extra_groups: groups in play in addition; slow ones are finished for a later batch.
        extra_members: trajectories to start in addition in each group; the slowest are cancelled.
        max_staleness: maximum age of a token, in updates of the weights.
        batches: total number of batches; no group is started that none of them needs.
    """

    def __init__(
        self,
        manager: RolloutManager,
        source: Iterable[Task],
        groups: int,
        group_size: int = 1,
        *,
        extra_groups: int = 0,
        extra_members: int = 0,
        max_staleness: int = 1,
        keep: Filter | None = None,
        batches: int | None = None,
    ):
        check_sizes(groups, group_size, extra_groups, extra_members)
        if max_staleness < 0:
            raise UsageError(f"max_staleness cannot be negative, got {max_staleness}")
        self.manager = manager
        self.groups, self.group_size = groups, group_size
        self.extra_groups, self.extra_members = extra_groups, extra_members
        self.max_staleness, self.keep, self.batches = max_staleness, keep, batches
        self.updates = self.returned = 0
        self.version = getattr(manager.agent, "version", 0)
        self._again: deque[Task] = deque()
        self._source = iter(source)
        self._numbers = itertools.count()
        self._begun = 0
        self._playing: dict[int, tuple[Group, asyncio.Task[Group]]] = {}
        self._ready: deque[Group] = deque()
        self._changed = asyncio.Event()
        self._runner: GroupRunner[Group] = GroupRunner()

    async def __aenter__(self) -> RolloutStream:
        self._watching = self.manager.watching()
        await self._watching.__aenter__()
        self._admit()
        self._pump = asyncio.create_task(self._collect())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        await self._runner.__aexit__(None, None, None)
        await self._watching.__aexit__(None, None, None)

    async def next_batch(self) -> list[Group]:
        """Return the next ``groups`` complete groups; fewer only when the source has ended.

        Raises:
            UsageError: the bound on staleness allows no further group before the next update.
            Exception: the exception that ended the rollout.
        """
        while len(self._ready) < self.groups and (self._playing or self._pump.done()):
            if self._pump.done():
                self._pump.result()
            self._changed.clear()
            await self._changed.wait()
        if len(self._ready) < self.groups and self.returned != self.batches and self._next_task():
            raise UsageError(
                f"after {self.updates} updates max_staleness={self.max_staleness} allows no further batch: call "
                "update_weights() before the next next_batch(), or raise max_staleness"
            )
        batch = [self._ready.popleft() for _ in range(min(self.groups, len(self._ready)))]
        self.returned += 1
        for group in batch:
            self.manager.stats.kept(group)
        self._admit()
        return batch

    async def update_weights(self, weights: Any = None) -> None:
        """Give the agent new weights between two tokens; unfinished responses continue after their tokens so far."""
        agent: Any = self.manager.agent
        await update_weights_of(agent, weights)
        self.updates += 1
        self.version = agent.version
        for number, (group, playing) in list(self._playing.items()):
            if self._stale(group):
                del self._playing[number]
                self._runner.cancel(playing)
                self._again.append(group.task)
                self._begun -= 1
        old = [group for group in self._ready if self._stale(group)]
        self._ready = deque(group for group in self._ready if not self._stale(group))
        for group in old:
            self._drop(group)
        self._admit()

    def staleness(self, batch: Iterable[Group]) -> dict[str, float]:
        """Compute the mean and maximum age, in updates, of the response tokens in a batch."""
        ages = [
            self.version - version
            for group in batch
            for t in group.complete
            for turn in t.turns
            for version in (turn.versions or (turn.policy_version,) * max(1, len(turn.response_ids)))
        ]
        return {"staleness/mean": sum(ages) / max(1, len(ages)), "staleness/max": max(ages, default=0)}

    @property
    def pending(self) -> list[Task]:
        """Tasks that were taken from the source but are in no batch yet."""
        groups = [*self._ready, *(group for group, _ in self._playing.values())]
        return [*(group.task for group in sorted(groups, key=lambda g: g.number)), *self._again]

    # -- inside --------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start groups while there is room and the bound on staleness allows it."""
        allowed = (self.updates + self.max_staleness + 1) * self.groups + self.extra_groups
        if self.batches is not None:
            allowed = min(allowed, self.batches * self.groups)
        while len(self._playing) < self.groups + self.extra_groups and self._begun < allowed:
            if not self._next_task():
                break
            task = self._again.popleft()
            group = Group(task, [], next(self._numbers))
            playing = self._runner.start(self.manager.play_and_reward(group, self.group_size, self.extra_members))
            self._playing[group.number] = group, playing
            self._begun += 1
        self._changed.set()

    def _next_task(self) -> bool:
        """Fetch the next task, if there is one."""
        if not self._again:
            self._again.extend(itertools.islice(self._source, 1))
        return bool(self._again)

    async def _collect(self) -> None:
        """Keep or drop each group when it is complete, and start new ones."""
        try:
            while True:
                group = await self._runner.next()
                if self._playing.pop(group.number, None) is None:
                    continue
                if len(group.complete) < self.group_size:
                    self._begun -= 1
                elif self._stale(group):
                    self._drop(group)
                elif self.keep and not self.keep(group):
                    self.manager.stats.filtered(group)
                    self._begun -= 1
                else:
                    self._ready.append(group)
                self._admit()
        finally:
            self._changed.set()

    def _stale(self, group: Group) -> bool:
        oldest = self.manager.oldest_version(group)
        return oldest is not None and oldest < self.version - self.max_staleness

    def _drop(self, group: Group) -> None:
        """Drop a complete group that is too old, and play its task again."""
        for trajectory in group:
            self.manager.stats.expired(trajectory)
        self._again.append(group.task)
        self._begun -= 1


class TailBatches:
    """Batches in which long tasks wait for each other (RollPacker, NSDI 2026, section 4).

    A short round starts more groups and members than it needs, keeps the first and defers the tasks of the others. When
    enough tasks are deferred, or the source has ended, a long round plays only those, all to the end. No task is lost,
    and few rounds wait for a long task.
    """

    def __init__(
        self,
        manager: RolloutManager,
        source: Iterable[Task],
        groups: int,
        group_size: int = 1,
        *,
        extra_groups: int,
        extra_members: int = 0,
        keep: Filter | None = None,
    ):
        check_sizes(groups, group_size, extra_groups, extra_members)
        self.manager, self.source = manager, iter(source)
        self.groups, self.group_size = groups, group_size
        self.extra_groups, self.extra_members, self.keep = extra_groups, extra_members, keep
        #: Tasks that were too slow for a short round.
        self.long: deque[Task] = deque()

    async def next_batch(self) -> list[Group]:
        """Return the next batch: of a long round if enough tasks are deferred, else of a short one."""
        if len(self.long) >= self.groups:
            return await self._long_round()
        fresh = list(itertools.islice(self.source, self.groups + self.extra_groups))
        if len(fresh) < self.groups:  # the source has ended
            self.long += fresh
            return await self._long_round()
        batch = await self.manager.batch_async(
            itertools.chain(fresh, self.source),
            self.groups,
            self.group_size,
            extra_groups=self.extra_groups,
            extra_members=self.extra_members,
            keep=self.keep,
        )
        self.long += self.manager.stats.unfinished
        return batch

    async def _long_round(self) -> list[Group]:
        """Play the deferred tasks, all to the end; tasks of the source replace dropped groups."""
        return await self.manager.batch_async(self._waiting_first(), self.groups, self.group_size, keep=self.keep)

    def _waiting_first(self) -> Iterator[Task]:
        while self.long:
            yield self.long.popleft()
        yield from self.source
