"""Evaluation of a suite, with metrics of each category."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rollenv.agents.base import Agent, ConstantAgent
from rollenv.bench.suites import Part, Suite
from rollenv.core.errors import UsageError
from rollenv.rollout.evaluate import Interval, success_rates, to_play
from rollenv.rollout.loops import refuse_running_loop
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Trajectory

#: Replies of constant agents, for the floor.
_CONSTANTS = ("Done.", "I cannot do that.")


@dataclass
class Row:
    """Metrics of one category, or of all together."""

    category: str
    n: int
    """Number of tasks."""
    k: int
    """Episodes per task."""
    success: Interval
    pass_at: dict[int, Interval]
    pass_all: dict[int, Interval]
    reward: float
    failed: int
    """Episodes that failed because of the agent, its endpoint or the environment."""
    turns: float
    metrics: dict[str, float]
    """Means of metrics from the environment, such as ``calls``, ``invalid_calls`` and ``partial``."""
    side_effects: float | None
    """The share of episodes with unwanted side effects."""
    prompt_tokens: float
    completion_tokens: float
    cost: float
    """Cost of all its episodes."""
    latency: float
    """Median over episodes of the agent's seconds per turn."""
    floor: float | None = None
    """Success of the better of two constant agents, which call nothing."""


@dataclass
class Benchmark:
    """The results of an agent on a suite."""

    suite: str
    rows: list[Row]
    total: Row
    """All categories together, weighted by their tasks."""
    macro: float
    """The mean of the categories' success."""
    missing: dict[str, str]
    failures: dict[str, int]
    seconds: float
    trajectories: list[Trajectory] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the episodes."""
        plain = {name: getattr(self, name) for name in ("suite", "macro", "missing", "failures", "seconds")}
        total = asdict(self.total)
        of_all = {name: total[name] for name in ("n", "k", "reward", "turns", "failed", "pass_at", "pass_all", "cost")}
        of_all |= dict(zip(("success", "low", "high"), self.total.success, strict=True))
        return plain | of_all | {"total": total, "categories": [asdict(row) for row in self.rows]}


def run(
    suite: Suite,
    agent: Agent,
    *,
    n: int | None = None,
    k: int = 1,
    seed: int = 0,
    manager: RolloutManager | None = None,
    played: Iterable[Trajectory] = (),
    seconds: float = 0.0,
    watch: Callable[[Trajectory], None] | None = None,
    floors: bool = True,
    note: Callable[[str], object] = lambda text: None,
) -> Benchmark:
    """Play a suite.

    Args:
        n: tasks of each category; None for all of a data set and 100 of what is generated.
        seed: seed of the first task of each category.
        manager: plays; a plain one by default.
        played: episodes of an earlier, unfinished run, which are not played again. Failed ones are.
        seconds: duration of the episodes in ``played``.
        watch: called with every trajectory that ends.
        floors: whether constant agents play the tasks, too.
        note: called with what is done after the agent's last episode.

    Raises:
        UsageError: nothing of the suite can be played here, ``n`` or ``k`` is below 1, or an event loop is running.
    """
    refuse_running_loop("await asyncio.to_thread(run, ...)")
    if k < 1 or (n is not None and n < 1):
        raise UsageError(f"k and n must be at least 1, got {k} and {n}")
    if not suite.parts:
        needs = "; ".join(f"{category} needs: {need}" for category, need in suite.missing.items())
        raise UsageError(f"nothing of the suite {suite.name!r} can be played here: {needs or 'it is empty'}")
    started = time.perf_counter()
    parts = [(part, part.tasks(n, seed)) for part in suite.parts]
    trajectories, rest = to_play([task for _, tasks in parts for task in tasks], k, played)
    with contextlib.nullcontext(manager) if manager is not None else RolloutManager(agent) as player:
        player.play(rest, watch)
    seconds += time.perf_counter() - started if rest or not seconds else 0.0
    if floors:
        note(f"playing the {sum(len(tasks) for _, tasks in parts)} tasks twice without a call, for the floor")
    rows, at = [], 0
    for part, tasks in parts:
        own = trajectories[at : at + len(tasks) * k]
        at += len(own)
        rows.append(row_of(part.category, own, k))
        if floors:
            rows[-1].floor = _floor(part, n, seed)
    failures = Counter(t.failure or "unknown" for t in trajectories if t.status == "failed")
    total = row_of("all", trajectories, k)
    if floors:
        total.floor = sum(row.n * (row.floor or 0.0) for row in rows) / total.n
    macro = _mean(row.success[0] for row in rows if row.failed < row.n * k)
    return Benchmark(suite.name, rows, total, macro, dict(suite.missing), dict(failures), seconds, trajectories)


def _floor(part: Part, n: int | None, seed: int) -> float:
    """Return the success of the better constant agent."""
    shares = []
    for text in _CONSTANTS:
        trajectories, rest = to_play(part.tasks(n, seed), 1)
        with RolloutManager(ConstantAgent(text)) as manager:
            manager.play(rest)
        shares.append(success_rates(trajectories, 1)[1][0])
    return max(shares)


def row_of(category: str, trajectories: Sequence[Trajectory], k: int) -> Row:
    """Compute the metrics of a category.

    Args:
        trajectories: all of its episodes; the ``k`` of a task are next to each other.
    """
    n, success, at_least_one, all_of_them = success_rates(trajectories, k)
    done = [t for t in trajectories if t.complete]
    names = {name for t in done for name in t.metrics} - _OF_ENDPOINTS
    metrics = {name: _mean(t.metrics[name] for t in done if name in t.metrics) for name in sorted(names)}
    strayed = [t.metrics["side_effects"] > 0 for t in done if "side_effects" in t.metrics]
    usage = [tokens_of(t) for t in trajectories]
    return Row(
        category,
        n,
        k,
        success,
        at_least_one,
        all_of_them,
        _mean(t.reward for t in done),
        sum(t.status == "failed" for t in trajectories),
        _mean(len(t.turns) for t in trajectories),
        metrics,
        _mean(strayed) if strayed else None,
        _mean(read for read, _ in usage),
        _mean(written for _, written in usage),
        sum(t.metrics.get("cost", 0.0) for t in trajectories),
        statistics.median([t.agent_seconds / len(t.turns) for t in trajectories if t.turns] or [0.0]),
    )


#: Numbers of trajectories that the agent's endpoint reports, not the environment.
_OF_ENDPOINTS = {"prompt_tokens", "completion_tokens", "cost"}


def tokens_of(trajectory: Trajectory) -> tuple[float, float]:
    """Return prompt and response tokens: the endpoint's counts, or those of the stored ids."""
    counted: Mapping[str, float] = trajectory.metrics
    if "prompt_tokens" in counted or "completion_tokens" in counted:
        return counted.get("prompt_tokens", 0.0), counted.get("completion_tokens", 0.0)
    turns = trajectory.turns
    return float(sum(len(t.prompt_ids) for t in turns)), float(sum(len(t.response_ids) for t in turns))


def _mean(values: Iterable[float]) -> float:
    found = [float(value) for value in values]
    return sum(found) / len(found) if found else 0.0
