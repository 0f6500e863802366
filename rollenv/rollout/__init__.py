"""Rollouts: trajectories, groups, the manager, evaluation."""

from rollenv.rollout.clock import Clock
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.evaluate import evaluate
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.stream import RolloutStream, TailBatches
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.rollout.workers.processes import ProcessWorkers

__all__ = [
    "Clock",
    "EpisodeLimits",
    "Group",
    "ProcessWorkers",
    "RolloutManager",
    "RolloutStream",
    "TailBatches",
    "Task",
    "Trajectory",
    "Turn",
    "evaluate",
]
