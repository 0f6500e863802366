"""Rewards of whole groups: rankings, the best of several, diversity."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence

from rollenv.core.errors import UsageError, describe
from rollenv.core.plugins import function_at
from rollenv.rollout import validation
from rollenv.rollout.records.health import RewardUnhealthy
from rollenv.rollout.types import Group, Trajectory

Rewards = Sequence[float]
GroupFunction = Callable[[list[Trajectory]], Rewards | Awaitable[Rewards]]

#: Consecutive groups for which the function may raise an exception.
_PATIENCE = 3


class GroupReward:
    """Adds a reward to the last turn of each member of a group, computed by a function of all members.

    Args:
        function: gets the complete episodes by member number and returns a finite number for each. It may be a
            coroutine function; a plain function blocks the rollout.
        seconds: deadline of a coroutine function; None for no limit.
    """

    def __init__(self, function: GroupFunction, seconds: float | None = None):
        self.function, self.seconds = function, seconds
        self.name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', function)}"
        self._failed = 0
        self._paid: list[float] = []

    async def __call__(self, group: Group) -> None:
        """Reward the members of a group. If the function raises an exception, they have failed.

        Raises:
            UsageError: it returned anything but a finite number for each member, or raised a UsageError itself.
            RewardUnhealthy: it raised exceptions for several groups in a row.
        """
        members = [t for t in group.complete if t.turns]
        if not members:
            return
        where = f"the group reward {self.name}, for group {group.number} of {group.task.env_id}"
        try:
            paid = await self.rewards(members, where)
        except UsageError:
            raise
        except Exception as error:
            self._failed += 1
            for trajectory in members:
                trajectory.status, trajectory.failure = "failed", "reward"
                trajectory.error = f"{where}, failed: {describe(error)}"
            if self._failed >= _PATIENCE:
                raise RewardUnhealthy(f"{trajectory.error}; so did the {_PATIENCE - 1} before") from error
            return
        self._failed = 0
        try:
            sums = [validation.number(t.turns[-1].reward + p, "a reward") for t, p in zip(members, paid, strict=True)]
        except validation.BadValue as error:
            raise UsageError(f"{where}, cannot be added: {error}") from error
        for trajectory, reward in zip(members, sums, strict=True):
            trajectory.env_reward = trajectory.own_reward
            trajectory.turns[-1].reward = reward
        self._paid += paid

    async def rewards(self, members: list[Trajectory], where: str) -> list[float]:
        """Return the function's reward for each member."""
        rewards = self.function(members)
        if inspect.isawaitable(rewards):
            rewards = await asyncio.wait_for(rewards, self.seconds)
        rewards = rewards.tolist() if hasattr(rewards, "tolist") else rewards
        if not isinstance(rewards, list | tuple) or len(rewards) != len(members):
            raise UsageError(
                f"{where}, returned {validation.kind(rewards)} {str(rewards)[:60]}; it has to return a list of "
                f"{len(members)} numbers, one for each episode"
            )
        try:
            return [validation.number(each, f"number {i}") for i, each in enumerate(rewards)]
        except validation.BadValue as error:
            raise UsageError(f"{where}, cannot be added: {error}") from error

    def metrics(self) -> dict[str, float]:
        """The mean reward added to an episode since the last call."""
        paid, self._paid = self._paid, []
        return {"added/group": sum(paid) / len(paid)} if paid else {}


def group_function(name: str) -> GroupFunction:
    """Load ``module:function``."""
    return function_at(name, "the group reward")
