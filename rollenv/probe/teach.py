"""Can the environment teach: success by task, informative groups, lengths, and the time of an iteration."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from rollenv.core.pictures import is_picture_token
from rollenv.rollout.evaluate import Interval, mean_interval, summarise
from rollenv.rollout.filters import differ
from rollenv.rollout.types import Trajectory

Verdict = Literal["teaches", "too easy", "too hard", "failed"]

#: Group sizes for the share of informative groups.
SIZES = (4, 8, 16)

#: Tokens of the forward and backward pass whose time is measured.
_MEASURED = 1024


@dataclass(frozen=True)
class TaskCounts:
    """The episodes of one task. ``failed`` ones are in no rate."""

    task: str
    solved: int
    failed: int
    rewards: tuple[float, ...]
    """The rewards of those that did not fail."""

    @property
    def reward(self) -> float:
        """The mean reward."""
        return statistics.fmean(self.rewards) if self.rewards else 0.0

    @property
    def verdict(self) -> Verdict:
        """``failed`` if most episodes did; ``teaches`` if rewards differ; otherwise too easy if all solved it."""
        if self.failed >= len(self.rewards):
            return "failed"
        if differ(self.rewards):
            return "teaches"
        return "too easy" if self.solved == len(self.rewards) else "too hard"


@dataclass(frozen=True)
class Taught:
    """The findings of the model's episodes, with 95 % intervals over tasks."""

    tasks: list[TaskCounts]
    success: Interval
    reward: Interval
    failures: dict[str, int]
    """Failed episodes by kind; ``error`` is that of the first."""
    distinct: int
    cut: int
    """Episodes of tasks that are left out, because there was no time."""
    error: str = ""

    def count(self, verdict: Verdict) -> int:
        """Return the number of tasks with a verdict."""
        return sum(task.verdict == verdict for task in self.tasks)

    def informative(self, size: int) -> Interval:
        """Return the share of groups of a size that would teach."""
        shares = [informative(task.rewards, size) for task in self.tasks if task.verdict != "failed"]
        return mean_interval(shares) if shares else (0.0, 0.0, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain data."""
        tasks = [asdict(task) | {"verdict": task.verdict} for task in self.tasks]
        return asdict(self) | {"tasks": tasks, "informative": {size: self.informative(size) for size in SIZES}}


def taught(env_id: str, episodes: Sequence[Trajectory], k: int, cut: int = 0) -> Taught:
    """Count the episodes of tasks.

    Args:
        episodes: the ``k`` of a task are next to each other.
    """
    tasks = []
    for i in range(0, len(episodes), k):
        done = [t for t in episodes[i : i + k] if t.complete]
        solved = sum(bool(t.success) for t in done)
        tasks.append(TaskCounts(place(episodes[i]), solved, k - len(done), tuple(t.reward for t in done)))
    told = [task for task in tasks if task.verdict != "failed"]
    rates, rewards = [task.solved / len(task.rewards) for task in told], [task.reward for task in told]
    mean = statistics.fmean(rewards) if rewards else 0.0
    half = 1.96 * statistics.stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else 0.0
    whole = summarise(env_id, episodes, k, 0.0)
    success = mean_interval(rates) if rates else (0.0, 0.0, 1.0)
    error = next((str(t.error) for t in episodes if t.status == "failed"), "")
    return Taught(tasks, success, (mean, mean - half, mean + half), whole.failures, whole.distinct, cut, error)


def place(trajectory: Trajectory) -> str:
    """Return the row or the seed of an episode's task."""
    task = trajectory.task
    return f"row {task.options['index']}" if "index" in task.options else f"seed {task.seed}"


def informative(rewards: Sequence[float], size: int) -> float:
    """The probability that the rewards of a group of ``size`` differ, from k episodes of its task.

    It is 1 - Σ C(c, size) / C(k, size) over the rewards that occur, c times each: the share of the subsets whose
    rewards differ, which is unbiased. With two rewards it estimates 1 - p^size - (1 - p)^size for the task's success
    rate p. Larger groups than k teach at least as often as those of k.
    """
    size = min(size, len(rewards))
    if size < 2:
        return 0.0
    counts = Counter(round(reward, 9) for reward in rewards).values()
    return 1.0 - sum(math.comb(c, size) for c in counts) / math.comb(len(rewards), size)


def lengths(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Measure complete episodes: median, 95 % quantile and maximum of lengths, and shares that limits cut off.

    ``answers_cut`` is the share of answers that end at the limit of tokens, ``cut_solved`` the number of episodes that
    were solved with such an answer, ``truncated`` the share of episodes that a limit ended, and ``full`` that of those
    whose next prompt did not fit. Without tokens there are no lengths in tokens.
    """
    done = [t for t in episodes if t.complete]
    turns = [turn for t in done for turn in t.turns]
    tokens = [turn for turn in turns if turn.prompt_ids]
    truncated = [t for t in done if t.status == "truncated"]
    counts = {"turns of an episode": [len(t.turns) for t in done]}
    counts["tokens of a prompt"] = [len(turn.prompt_ids) for turn in tokens]
    counts["tokens of an answer"] = [len(turn.response_ids) for turn in tokens]
    found: dict[str, Any] = {
        name: np.quantile(values, (0.5, 0.95, 1.0)).round(1).tolist() for name, values in counts.items() if values
    }
    return found | {
        "answers_cut": sum(turn.finish == "length" for turn in turns) / max(len(turns), 1),
        "cut_solved": sum(bool(t.success) and any(turn.finish == "length" for turn in t.turns) for t in done),
        "truncated": len(truncated) / max(len(done), 1),
        "full": sum(bool(tokens) and not t.final_ids for t in truncated) / max(len(done), 1),
    }


def update_seconds(model: Any, episodes: Sequence[Trajectory], size: int) -> float | None:
    """Estimate the seconds of a forward and backward pass for one group, from one that is run here.

    Common beginnings count once, as in an update; tokens of pictures count as texts. None without tokens, or without
    memory for gradients.

    Args:
        size: episodes of the group.
    """
    import psutil
    import torch

    from rollenv.trainers.prefixes import tree

    by_task: dict[str, list[tuple[int, ...]]] = {}
    for t in episodes:
        by_task.setdefault(place(t), []).extend(turn.prompt_ids + turn.response_ids for turn in t.turns)
    inputs = [ids for group in by_task.values() for ids in group if ids]
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    if not inputs or (model.device.type == "cpu" and 2 * weights > psutil.virtual_memory().available):
        return None
    trees = [tree(np.array(ids, dtype=np.int64).tobytes() for ids in group)[0] for group in by_task.values()]
    tokens = sum(segment.end - segment.before for segments in trees for segment in segments) / len(episodes)
    longest = max(inputs, key=len)[:_MEASURED]
    known = [0 if is_picture_token(token) else token for token in longest]
    batch = torch.tensor([known] * (_MEASURED // len(known)), device=model.device)
    began = time.perf_counter()
    try:
        with torch.enable_grad():
            model(input_ids=batch, labels=batch, use_cache=False).loss.backward()
    except torch.OutOfMemoryError:
        return None
    finally:
        model.zero_grad(set_to_none=True)
    return (time.perf_counter() - began) / float(batch.numel()) * tokens * size
