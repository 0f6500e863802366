"""A shard that needs no machine, for shards in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.shard import ShardHost, ShardLost, ShardResult
from rollenv.rollout.types import Task


class LocalShard(ShardHost):
    """A shard in this process, which can be lost."""

    def __init__(self, name: str, build: Callable[[], RolloutManager]):
        super().__init__(build)
        self.name = name
        self._lost = False

    def kill(self) -> None:
        """Simulate the loss of the shard."""
        self._lost = True
        for _, playing in self._playing.values():
            playing.cancel()

    def check_alive(self) -> None:
        if self._lost:
            raise ShardLost(f"{self.name} was ended")

    async def play(self, key: int, task: Task, size: int, extra_members: int) -> ShardResult:
        try:
            return await super().play(key, task, size, extra_members)
        except asyncio.CancelledError:
            self.check_alive()
            raise

    async def close(self) -> None:
        await self.end()
