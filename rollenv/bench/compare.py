"""Comparison of two agents on their common tasks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollenv.core.errors import UsageError
from rollenv.rollout.types import Task, Trajectory

#: Number and seed of bootstrap samples.
_SAMPLES, _SEED = 10_000, 0
#: For equal agents, five differing tasks all favor the same one with probability 1/16, six with 1/32.
_FEWEST = 6


@dataclass(frozen=True)
class Difference:
    """The difference in one category: the second agent minus the first."""

    category: str
    tasks: int
    """Tasks that both agents played."""
    first: float
    second: float
    """Success rates of both agents on these tasks."""
    difference: float
    low: float
    high: float
    """The 95 % interval of the difference, over tasks."""
    only_first: int
    only_second: int
    """Tasks with different success rates."""

    @property
    def clear(self) -> bool:
        """True if the interval excludes zero, and enough tasks differ."""
        return (self.low > 0 or self.high < 0) and self.only_first + self.only_second >= _FEWEST


@dataclass(frozen=True)
class Comparison:
    """The comparison of two runs."""

    rows: list[Difference]
    total: Difference
    only_first: int
    only_second: int
    """Tasks in only one of the runs, which are left out."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def compare(first: Iterable[Trajectory], second: Iterable[Trajectory]) -> Comparison:
    """Compare two agents task by task.

    The interval is the percentile bootstrap's over tasks, drawn within each category; the episodes of a task are one
    draw, since they are not independent. Episodes that failed are left out.
    """
    ours, theirs = _by_task(first), _by_task(second)
    common = [key for key in ours if key in theirs]
    if not common:
        text = "episodes that failed are not graded; compare runs of the same suite, seed and settings"
        raise UsageError(f"the two runs have no graded task in common: {text}")
    categories: dict[str, list[str]] = defaultdict(list)
    for key in common:
        categories[str(json.loads(key)[0]).partition(":")[2]].append(key)
    rng = np.random.default_rng(_SEED)
    rows, sampled = [], np.zeros(_SAMPLES)
    for category, keys in categories.items():
        a, b = (np.array([each[key] for key in keys]) for each in (ours, theirs))
        means = _bootstrap(b - a, rng)
        sampled += means * (len(keys) / len(common))
        rows.append(_difference(category, a, b, means))
    a, b = (np.array([each[key] for key in common]) for each in (ours, theirs))
    left_out = len(ours) - len(common), len(theirs) - len(common)
    return Comparison(rows, _difference("all", a, b, sampled), *left_out)


def _difference(category: str, a: NDArray[Any], b: NDArray[Any], means: NDArray[Any]) -> Difference:
    low, high = (float(q) for q in np.quantile(means, (0.025, 0.975)))
    change = float((b - a).mean())
    counts = int((a > b).sum()), int((b > a).sum())
    return Difference(category, len(a), float(a.mean()), float(b.mean()), change, low, high, *counts)


def _bootstrap(values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Return means of bootstrap samples, computed in chunks to limit memory."""
    out: list[NDArray[Any]] = []
    for start in range(0, _SAMPLES, 500):
        rows = min(500, _SAMPLES - start)
        out.append(values[rng.integers(len(values), size=(rows, len(values)))].mean(axis=1))
    return np.concatenate(out)


def _by_task(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Return the success rate of every task. If an episode was played again, the last one counts."""
    latest: dict[tuple[str, int], bool] = {}
    for each in trajectories:
        if each.complete:
            latest[task_key(each.task), each.member] = bool(each.success)
    found: dict[str, list[bool]] = defaultdict(list)
    for (key, _), success in latest.items():
        found[key].append(success)
    return {key: sum(wins) / len(wins) for key, wins in found.items()}


#: Settings that change only the wording of a task; agents may differ in them.
_FORMS = ("calls",)


def task_key(task: Task) -> str:
    """Return the identity of a task: equal for the same task, however its calls are written."""
    kwargs = {name: value for name, value in task.kwargs.items() if name not in _FORMS}
    return json.dumps([task.env_id, task.seed, kwargs, task.options], sort_keys=True)
