"""What a rollout produces: turns, trajectories and groups of trajectories of one task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """One episode to play: which environment, how it is set up, and its seed."""

    env_id: str
    seed: int
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Turn:
    """One prompt, one response, and what the environment made of it."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each response token when it was drawn."""
    reward: float
    text: str
    """The action, as the environment got it."""
    observation: str
    """What the environment had said before."""
    state_key: str = ""
    """The state the action was taken in, where the environment names its states."""
    policy_version: int = 0
    view: str = ""
    """The state as drawn for people, where that was asked for."""


@dataclass(slots=True)
class Trajectory:
    """One episode. ``status``: "terminated" (the task ended), "truncated" (a limit did) or "failed" (see ``error``)."""

    task: Task
    turns: list[Turn] = field(default_factory=list)
    status: str = "failed"
    success: bool = False
    error: str = ""
    final_observation: str = ""
    final_view: str = ""

    @property
    def reward(self) -> float:
        """The sum of its turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"reward": self.reward}


@dataclass(slots=True)
class Group:
    """Trajectories of one task."""

    task: Task
    trajectories: list[Trajectory]

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)
