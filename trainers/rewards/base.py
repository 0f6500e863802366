"""The interface of reward functions, and their combination."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from rollenv.core.errors import UsageError
from rollenv.rollout.types import Trajectory
from rollenv.trainers.config.tasks import pattern_of
from rollenv.trainers.sources.base import SourcedTask

Reward = Callable[[Trajectory], Awaitable[float]]


class ByDomain:
    """Calls the reward function of a trajectory's domain.

    The domains of a trajectory are the names of its task's sources in mixtures, the outermost first, and then the id of
    its environment. The first domain that matches a pattern decides, with the first of its patterns. ``*`` matches if
    no other pattern does.

    Args:
        routes: reward functions by pattern, such as ``math:*``, with the wildcards of file names.
    """

    def __init__(self, routes: Mapping[str, Reward]):
        if not routes:
            raise UsageError('rewards by domain need at least one route, such as {"math:*": ...}')
        self.routes = dict(routes)

    async def __call__(self, trajectory: Trajectory) -> float:
        return await self.route(trajectory)(trajectory)

    def route(self, trajectory: Trajectory) -> Reward:
        """Return the reward function of a trajectory."""
        names = list(domains(trajectory))
        pattern = pattern_of(self.routes, names)
        if pattern is None:
            raise UsageError(f"no reward is set for {' or '.join(names)}; there are {', '.join(self.routes)}")
        return self.routes[pattern]


def domains(trajectory: Trajectory) -> Iterator[str]:
    """Yield the names of a task's sources in mixtures, and its environment's id."""
    if isinstance(trajectory.task, SourcedTask):
        yield from (part for part in trajectory.task.origin if isinstance(part, str))
    yield trajectory.task.env_id


class Sum:
    """A weighted sum of reward functions, which are called concurrently."""

    def __init__(self, parts: Sequence[tuple[float, Reward]]):
        if not parts:
            raise UsageError("a sum of rewards needs at least one part")
        self.parts = list(parts)

    async def __call__(self, trajectory: Trajectory) -> float:
        return sum(await self.terms(trajectory))

    async def terms(self, trajectory: Trajectory) -> list[float]:
        """Compute the weighted reward of each part."""
        running = [asyncio.ensure_future(reward(trajectory)) for _, reward in self.parts]
        try:
            rewards = await asyncio.gather(*running)
        finally:
            for one in running:  # if one fails, the others are not needed
                one.cancel()
        return [weight * reward for (weight, _), reward in zip(self.parts, rewards, strict=True)]


def last_answer(trajectory: Trajectory) -> str:
    """Return the agent's last answer, without its thoughts."""
    return trajectory.turns[-1].text
