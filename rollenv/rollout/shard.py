"""A shard of a rollout: a manager in a process of its own, beside its environments and its engine."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rollenv.agents.engines.base import Sampling
from rollenv.core.errors import RollenvError
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.health import Health
from rollenv.rollout.types import Group, Task, Trajectory

#: The health records of a shard and the report of its workers.
Condition = tuple[Health, list[dict[str, Any]]]


class ShardLost(RollenvError):
    """A shard ended with its process or machine, or does not answer."""


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Trajectories that a shard has played."""

    trajectories: list[Trajectory]
    tokens: int = 0
    """Tokens computed or sampled by the shard's engine since its last report."""


class Shard(Protocol):
    """A manager elsewhere. Every method raises :class:`ShardLost` when the shard is lost."""

    name: str

    async def play(self, key: int, task: Task, size: int, extra_members: int) -> ShardResult:
        """Play a group, identified by a key; see :meth:`RolloutManager.play_group`."""
        ...

    async def play_many(self, trajectories: list[Trajectory], sampling: Sampling | None) -> ShardResult:
        """Play episodes; see :meth:`RolloutManager.play`. ``sampling=None`` means the agent's own."""
        ...

    def cancel(self, key: int) -> None:
        """Cancel a group; returns at once."""
        ...

    async def suspend(self) -> None: ...

    async def update(self, weights: Any, version: int) -> dict[int, int | None]:
        """Give the agent new weights, and return the oldest version of the tokens of every group in play, by key."""
        ...

    async def resume(self) -> None: ...

    async def ping(self) -> Condition:
        """Return the shard's condition."""
        ...

    async def close(self) -> None:
        """End the shard and free its resources. Never raises."""
        ...


class ShardHost:
    """The program of a shard, in its own process; ``build`` makes its manager, with its agent and workers."""

    def __init__(self, build: Callable[[], RolloutManager]):
        self.manager = build()
        self._playing: dict[int, tuple[Group, asyncio.Task[Group]]] = {}
        self._watching = contextlib.AsyncExitStack()
        self._begun = False
        self._tokens_reported = 0

    def check_alive(self) -> None: ...

    async def play(self, key: int, task: Task, size: int, extra_members: int) -> ShardResult:
        self.check_alive()
        if not self._begun:
            self._begun = True
            await self._watching.enter_async_context(self.manager.watching())
        group = Group(task, [], key)
        playing = asyncio.create_task(self.manager.play_group(group, size, extra_members))
        self._playing[key] = group, playing
        try:
            return self._result_of((await playing).trajectories)
        finally:
            playing.cancel()
            self._playing.pop(key, None)

    async def play_many(self, trajectories: list[Trajectory], sampling: Sampling | None) -> ShardResult:
        agent: Any = copy.copy(self.manager.agent)
        if sampling is not None:
            agent.sampling = sampling
        manager = self.manager.with_agent(agent, keep_views=sampling is not None)
        return self._result_of(list(await manager.play_async(trajectories)))

    def _result_of(self, trajectories: list[Trajectory]) -> ShardResult:
        reported, self._tokens_reported = self._tokens_reported, getattr(self._agent, "tokens", 0)
        return ShardResult(trajectories, self._tokens_reported - reported)

    def cancel(self, key: int) -> None:
        if key in self._playing:
            self._playing[key][1].cancel()

    async def suspend(self) -> None:
        self.check_alive()
        if self._updatable:
            await self._agent.suspend()

    async def update(self, weights: Any, version: int) -> dict[int, int | None]:
        self.check_alive()
        await self._agent.update_weights(weights)
        self._agent.version = version
        return {key: group.oldest_version for key, (group, _) in self._playing.items()}

    async def resume(self) -> None:
        self.check_alive()
        if self._updatable:
            await self._agent.resume()

    async def ping(self) -> Condition:
        self.check_alive()
        return self.manager.condition()

    async def end(self) -> None:
        """Cancel all groups in play and close the workers."""
        for _, playing in list(self._playing.values()):
            playing.cancel()
        await asyncio.gather(*(playing for _, playing in self._playing.values()), return_exceptions=True)
        await self._watching.aclose()
        await self.manager.workers.aclose()

    @property
    def _agent(self) -> Any:
        return self.manager.agent

    @property
    def _updatable(self) -> bool:
        """True if the agent has weights."""
        return hasattr(self._agent, "update_weights")
