"""One shard of a rollout: a manager that plays whole groups for :mod:`rollenv.rollout.shards`."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rollenv.agents.engines.base import Sampling
from rollenv.core import RollenvError
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.health import Health
from rollenv.rollout.types import Group, Task, Trajectory

#: The health of what a shard has played, and the report on its workers.
Condition = tuple[Health, list[dict[str, Any]]]


class ShardLost(RollenvError):
    """A shard is gone, with its process or its machine, or does not answer."""


@dataclass(frozen=True, slots=True)
class Played:
    """What a shard has played."""

    trajectories: list[Trajectory]
    tokens: int = 0
    """That its engine has computed or drawn since it last said so."""


class Shard(Protocol):
    """A manager somewhere else. Every method raises :class:`ShardLost` when it is gone."""

    name: str

    async def play(self, key: int, task: Task, size: int, extra_members: int) -> Played:
        """Play a group; see :meth:`RolloutManager.play_group`.

        Args:
            key: for :meth:`cancel` and :meth:`update`.
        """
        ...

    async def play_many(self, trajectories: list[Trajectory], sampling: Sampling | None) -> Played:
        """Play episodes; see :meth:`RolloutManager.play`.

        Args:
            sampling: how to draw; as the shard's agent does by default.
        """
        ...

    def cancel(self, key: int) -> None:
        """Give a group up; returns at once."""
        ...

    async def suspend(self) -> None: ...

    async def update(self, weights: Any, version: int) -> dict[int, int | None]:
        """Give the agent new weights.

        Args:
            weights: as its ``update_weights`` takes them.

        Returns:
            For every group in play the oldest version that drew a token of it; None before the first token.
        """
        ...

    async def resume(self) -> None: ...

    async def ping(self) -> Condition:
        """Answer; see :meth:`RolloutManager.condition`."""
        ...

    async def close(self) -> None:
        """End it and free what it holds. Never raises."""
        ...


class Host:
    """What a shard does where it is.

    Args:
        build: makes its manager, with the agent and the workers.
    """

    def __init__(self, build: Callable[[], RolloutManager]):
        self.manager = build()
        self._playing: dict[int, tuple[Group, asyncio.Task[Group]]] = {}
        self._watching = contextlib.AsyncExitStack()
        self._begun = False
        self._told = 0

    async def play(self, key: int, task: Task, size: int, extra_members: int) -> Played:
        """See :class:`Shard`."""
        if not self._begun:
            self._begun = True
            await self._watching.enter_async_context(self.manager.watching())
        group = Group(task, [], key)
        playing = asyncio.create_task(self.manager.play_group(group, size, extra_members))
        self._playing[key] = group, playing
        try:
            return self._played((await playing).trajectories)
        finally:
            playing.cancel()
            self._playing.pop(key, None)

    async def play_many(self, trajectories: list[Trajectory], sampling: Sampling | None) -> Played:
        """See :class:`Shard`."""
        agent: Any = copy.copy(self.manager.agent)
        if sampling is not None:
            agent.sampling = sampling
        manager = self.manager.beside(agent, keep_views=sampling is not None)
        return self._played(list(await manager.play_async(trajectories)))

    def _played(self, trajectories: list[Trajectory]) -> Played:
        told, self._told = self._told, getattr(self._agent, "tokens", 0)
        return Played(trajectories, self._told - told)

    def cancel(self, key: int) -> None:
        """See :class:`Shard`."""
        if key in self._playing:
            self._playing[key][1].cancel()

    async def suspend(self) -> None:
        """See :class:`Shard`."""
        if self._updatable:
            await self._agent.suspend()

    async def update(self, weights: Any, version: int) -> dict[int, int | None]:
        """See :class:`Shard`."""
        await self._agent.update_weights(weights)
        self._agent.version = version
        return {key: group.oldest_version for key, (group, _) in self._playing.items()}

    async def resume(self) -> None:
        """See :class:`Shard`."""
        if self._updatable:
            await self._agent.resume()

    async def ping(self) -> Condition:
        """See :class:`Shard`."""
        return self.manager.condition()

    async def end(self) -> None:
        """Give up what is played, and free the workers."""
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
        """Whether the agent has weights."""
        return hasattr(self._agent, "update_weights")


class LocalShard(Host):
    """A shard in this process: for virtual time, and to see that it is lost when somebody says so."""

    def __init__(self, name: str, build: Callable[[], RolloutManager]):
        super().__init__(build)
        self.name = name
        self._lost = asyncio.Event()

    def kill(self) -> None:
        """Be lost, at once."""
        self._lost.set()
        for _, playing in self._playing.values():
            playing.cancel()

    async def play(self, key: int, task: Task, size: int, extra_members: int) -> Played:
        """See :class:`Shard`."""
        self._check()
        try:
            return await super().play(key, task, size, extra_members)
        except asyncio.CancelledError:
            self._check()
            raise

    async def suspend(self) -> None:
        """See :class:`Shard`."""
        self._check()
        await super().suspend()

    async def update(self, weights: Any, version: int) -> dict[int, int | None]:
        """See :class:`Shard`."""
        self._check()
        return await super().update(weights, version)

    async def resume(self) -> None:
        """See :class:`Shard`."""
        self._check()
        await super().resume()

    async def ping(self) -> Condition:
        """See :class:`Shard`."""
        self._check()
        return await super().ping()

    async def close(self) -> None:
        """See :class:`Shard`."""
        await self.end()

    def _check(self) -> None:
        if self._lost.is_set():
            raise ShardLost(f"{self.name} was ended")
