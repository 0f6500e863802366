"""Can the environment teach: success by task, informative groups, lengths, and the time of an iteration."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rollenv.rollout.evaluate import Interval, mean_interval, summarise
from rollenv.rollout.filters import differ
from rollenv.rollout.types import Trajectory

if TYPE_CHECKING:
    from rollenv.agents.local import LocalAgent

Verdict = Literal["teaches", "too easy", "too hard", "failed"]

#: Group sizes for the share of informative groups.
SIZES = (4, 8, 16)

#: Maximum tokens of the forward and backward pass whose time is measured.
_MEASURED = 1024


@dataclass(frozen=True)
class TaskCounts:
    """The episodes of one task. ``failed`` ones are in no rate."""

    task: str
    episodes: int
    solved: int
    failed: int
    reward: float
    rewards: tuple[float, ...] = field(repr=False)

    @property
    def verdict(self) -> Verdict:
        """``failed`` if most episodes did; ``teaches`` if rewards differ; otherwise too easy if all solved it."""
        if 2 * self.failed >= self.episodes:
            return "failed"
        if differ(self.rewards):
            return "teaches"
        return "too easy" if self.solved and self.solved == self.episodes - self.failed else "too hard"


@dataclass(frozen=True)
class Taught:
    """What the model's episodes say."""

    tasks: list[TaskCounts]
    success: Interval
    reward: Interval
    """The mean over tasks, with the normal interval of the mean of tasks."""
    informative: dict[int, Interval]
    """The share of groups of each size whose rewards differ."""
    failures: dict[str, int]
    cut: int
    """Episodes of tasks that are left out, because there was no time."""
    distinct: int

    def count(self, verdict: Verdict) -> int:
        """Return the number of tasks with a verdict."""
        return sum(task.verdict == verdict for task in self.tasks)

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain data."""
        tasks = [asdict(task) | {"verdict": task.verdict} for task in self.tasks]
        return asdict(self) | {"tasks": tasks}


def taught(env_id: str, episodes: Sequence[Trajectory], k: int, cut: int = 0) -> Taught:
    """Count the episodes of tasks.

    Args:
        episodes: the ``k`` of a task are next to each other.
        cut: number of episodes of tasks that are left out, because there was no time.
    """
    tasks = [_counts(episodes[i : i + k]) for i in range(0, len(episodes), k)]
    told = [task for task in tasks if task.verdict != "failed"]
    summary = summarise(env_id, episodes, k, 0.0)
    rates = [task.solved / max(task.episodes - task.failed, 1) for task in told]
    return Taught(
        tasks,
        mean_interval(rates) if rates else (0.0, 0.0, 1.0),
        _normal([task.reward for task in told]),
        {size: mean_interval([informative(task.rewards, size) for task in told] or [0.0]) for size in SIZES},
        summary.failures,
        cut,
        summary.distinct,
    )


def _counts(group: Sequence[Trajectory]) -> TaskCounts:
    done = [t for t in group if t.complete]
    task = group[0].task
    rewards = tuple(t.reward for t in done)
    name = f"row {task.options['index']}" if "index" in task.options else f"seed {task.seed}"
    mean = statistics.fmean(rewards) if rewards else 0.0
    return TaskCounts(name, len(group), sum(t.success for t in done), len(group) - len(done), mean, rewards)


def _normal(values: Sequence[float]) -> Interval:
    if not values:
        return 0.0, 0.0, 0.0
    mean = statistics.fmean(values)
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean, mean - half, mean + half


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


# -- lengths and time --------------------------------------------------------------------------------------------------


@dataclass
class Lengths:
    """Quantiles (median, 95 %, largest) and what limits cut off, as shares."""

    turns: tuple[float, float, float]
    prompt: tuple[float, float, float] | None
    """Tokens of the prompts; None if the agent has no tokens."""
    answer: tuple[float, float, float] | None
    context: int | None
    max_prompt: int | None
    max_new: int | None
    cut_answers: float
    """The share of answers that end at the limit of new tokens."""
    truncated: float
    """The share of episodes that a limit ended: the environment's, the context, or the tokens of a prompt."""
    full: float
    """The share of episodes whose next prompt did not fit."""


def lengths(episodes: Sequence[Trajectory], limits: dict[str, int | None]) -> Lengths:
    """Measure the lengths of complete episodes.

    Args:
        limits: ``context``, ``max_prompt`` and ``max_new``, as far as they are known.
    """
    done = [t for t in episodes if t.complete]
    turns = [turn for t in done for turn in t.turns]
    tokens = any(turn.prompt_ids for turn in turns)
    truncated = [t for t in done if t.status == "truncated"]
    full = [t for t in truncated if tokens and not t.final_ids]
    return Lengths(
        _quantiles([len(t.turns) for t in done]),
        _quantiles([len(turn.prompt_ids) for turn in turns]) if tokens else None,
        _quantiles([len(turn.response_ids) for turn in turns]) if tokens else None,
        cut_answers=sum(turn.finish == "length" for turn in turns) / max(len(turns), 1),
        truncated=len(truncated) / max(len(done), 1),
        full=len(full) / max(len(done), 1),
        **limits,
    )


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    if not values:
        return 0.0, 0.0, 0.0
    median, high, most = np.quantile(values, (0.5, 0.95, 1.0))
    return float(median), float(high), float(most)


@dataclass
class Iteration:
    """The time of one iteration of a run here, in seconds, from measured parts."""

    episodes: int
    play: float
    update: float | None
    """Forward and backward pass of the groups that teach; None if the model is not in this process."""
    cost: float | None = None
    """What an endpoint asks for the episodes, by --prices."""


def iteration(
    episodes: Sequence[Trajectory], seconds: float, groups: int, size: int, epochs: int, agent: LocalAgent | None
) -> Iteration:
    """Estimate an iteration from what was played.

    Args:
        seconds: duration of ``episodes``; those without a turn do not count.
        groups: groups of a batch, each with ``size`` episodes.
        agent: a model in this process, for which one forward and backward pass is run.
    """
    done = [t for t in episodes if t.turns]
    play = seconds / max(len(done), 1) * groups * size
    costs = [t.metrics["cost"] for t in done if "cost" in t.metrics]
    cost = statistics.fmean(costs) * groups * size if costs else None
    update = None
    if agent is not None and done:
        rate = _seconds_per_token(agent, done)
        update = rate and rate * epochs * groups * _group_tokens(done, size)
    return Iteration(groups * size, play, update, cost)


def _inputs(trajectory: Trajectory) -> list[tuple[int, ...]]:
    return [turn.prompt_ids + turn.response_ids for turn in trajectory.turns if turn.response_ids]


def _group_tokens(done: Sequence[Trajectory], size: int) -> float:
    """The mean number of tokens of a group that an update computes, with common beginnings once."""
    from rollenv.trainers.prefixes import tree

    by_task: dict[str, list[Trajectory]] = {}
    for t in done:
        by_task.setdefault(f"{t.task.seed} {t.task.options}", []).append(t)
    totals, played = 0, 0
    for group in by_task.values():
        inputs = [np.array(ids, dtype=np.int64).tobytes() for t in group for ids in _inputs(t)]
        segments, _ = tree(inputs)
        totals, played = totals + sum(s.end - s.before for s in segments), played + len(group)
    return totals / max(played, 1) * size


def _seconds_per_token(agent: LocalAgent, done: Sequence[Trajectory]) -> float | None:
    """Run one forward and backward pass and return its seconds per token; None if there is no memory for gradients."""
    import psutil
    import torch

    inputs = [ids for t in done for ids in _inputs(t)]
    weights = sum(p.numel() * p.element_size() for p in agent.model.parameters())
    if not inputs or (agent.model.device.type == "cpu" and 2 * weights > psutil.virtual_memory().available):
        return None
    longest = max(inputs, key=len)[:_MEASURED]
    batch = torch.tensor([longest] * max(1, _MEASURED // len(longest)), device=agent.model.device)
    with torch.enable_grad():
        began = time.perf_counter()
        try:
            loss: Any = agent.model(input_ids=batch, labels=batch, use_cache=False).loss
            loss.backward()
        except torch.OutOfMemoryError:
            return None
        finally:
            agent.model.zero_grad(set_to_none=True)
        return (time.perf_counter() - began) / float(batch.numel())
