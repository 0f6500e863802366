"""How well an agent does: success with its 95 % interval over seeded episodes."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from rollenv.agents.base import Agent
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task, Trajectory


@dataclass(slots=True)
class Evaluation:
    """Results over ``n`` episodes; ``low`` and ``high`` bound the success rate with 95 % confidence."""

    env_id: str
    n: int
    success: float
    low: float
    high: float
    reward: float
    turns: float
    failed: int
    seconds: float
    trajectories: list[Trajectory] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, without the trajectories."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "trajectories"}


def evaluate(
    agent: Agent,
    env_id: str,
    kwargs: dict[str, Any] | None = None,
    *,
    n: int = 100,
    seed: int = 0,
    manager: RolloutManager | None = None,
) -> Evaluation:
    """Play the episodes with the seeds ``seed`` .. ``seed + n - 1``, one each."""
    started = time.perf_counter()
    manager = manager or RolloutManager(agent)
    groups = manager.collect([Task(env_id, seed + i, kwargs or {}) for i in range(n)])
    trajectories = [t for group in groups for t in group]
    wins = sum(t.success for t in trajectories)
    low, high = wilson_interval(wins, n)
    return Evaluation(
        env_id=env_id,
        n=n,
        success=wins / n,
        low=low,
        high=high,
        reward=sum(t.reward for t in trajectories) / n,
        turns=sum(len(t.turns) for t in trajectories) / n,
        failed=sum(t.status == "failed" for t in trajectories),
        seconds=time.perf_counter() - started,
        trajectories=trajectories,
    )


def wilson_interval(wins: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval for a share of ``wins`` in ``n``; z = 1.96 gives 95 %."""
    share = wins / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (0.0 if wins == 0 else middle - half), (1.0 if wins == n else middle + half)
