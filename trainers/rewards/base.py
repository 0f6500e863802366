"""The interface of reward functions, and their combination."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from rollenv.core import UsageError
from rollenv.rollout.types import Trajectory
from rollenv.trainers.sources.base import Drawn

Reward = Callable[[Trajectory], Awaitable[float]]


class ByDomain:
    """Asks the reward function of a trajectory's domain.

    Domains of a trajectory are the names under which mixtures gave its task, the outermost first, and then the id of
    its environment. The first domain that a pattern fits decides; of several patterns, the first. ``*`` is for all
    that no other pattern fits.

    Args:
        routes: patterns, as of file names (``math:*``), and what they lead to.

    Raises:
        UsageError: no routes; when called, if none fits.
    """

    def __init__(self, routes: Mapping[str, Reward]):
        if not routes:
            raise UsageError('rewards by domain need at least one route, such as {"math:*": ...}')
        self.routes = dict(routes)

    async def __call__(self, trajectory: Trajectory) -> float:
        return await self.route(trajectory)(trajectory)

    def route(self, trajectory: Trajectory) -> Reward:
        """The reward function for a trajectory.

        Raises:
            UsageError: there is none.
        """
        names = list(domains(trajectory))
        pattern = pattern_of(self.routes, names)
        if pattern is None:
            raise UsageError(f"no reward is set for {' or '.join(names)}; there are {', '.join(self.routes)}")
        return self.routes[pattern]


def pattern_of(patterns: Iterable[str], names: Sequence[str]) -> str | None:
    """The pattern that decides for something, as :class:`ByDomain` says; None if there is none.

    Args:
        patterns: the first that fits decides, ``*`` last.
        names: the domains, the outermost first.
    """
    given = list(patterns)
    for name in names:
        for pattern in given:
            if pattern != "*" and fnmatchcase(name, pattern):
                return pattern
    return "*" if "*" in given else None


def domains(trajectory: Trajectory) -> Iterator[str]:
    """The names of mixtures' sources that a task came through, and its environment's id."""
    if isinstance(trajectory.task, Drawn):
        yield from (part for part in trajectory.task.origin if isinstance(part, str))
    yield trajectory.task.env_id


class Sum:
    """A weighted sum of reward functions, which are asked at the same time.

    Raises:
        UsageError: there are none.
    """

    def __init__(self, parts: Sequence[tuple[float, Reward]]):
        if not parts:
            raise UsageError("a sum of rewards needs at least one part")
        self.parts = list(parts)

    async def __call__(self, trajectory: Trajectory) -> float:
        running = [asyncio.ensure_future(reward(trajectory)) for _, reward in self.parts]
        try:
            rewards = await asyncio.gather(*running)
        finally:
            for one in running:  # of those that still run when another failed, nothing is wanted any more
                one.cancel()
        return sum(weight * got for (weight, _), got in zip(self.parts, rewards, strict=True))


def last_answer(trajectory: Trajectory) -> str:
    """The agent's last answer, without its thoughts."""
    return trajectory.turns[-1].text
