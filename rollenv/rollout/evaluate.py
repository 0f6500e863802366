"""Evaluation of agents: success, pass@k and pass^k with their 95 % intervals over seeded tasks."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollenv.agents.base import Agent
from rollenv.core.arguments import checked_arguments
from rollenv.core.errors import UsageError
from rollenv.core.registry import spec
from rollenv.rollout.loops import refuse_running_loop
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task, Trajectory

#: Default number of tasks where they are generated, not numbered.
DEFAULT_TASKS = 100

#: Maximum number of tasks, which are all made before the first is played.
MOST_TASKS = 10_000_000

#: A value with the bounds of its 95 % interval.
Interval = tuple[float, float, float]


@dataclass(slots=True)
class Evaluation:
    """Results over ``n`` tasks with ``k`` episodes each.

    An episode that failed says nothing about success: it is counted apart, and not graded. Where all failed, success
    is 0 with the interval 0 to 1.
    """

    env_id: str
    n: int
    k: int
    success: float
    low: float
    high: float
    reward: float
    turns: float
    failed: int
    failures: dict[str, int]
    """Number of failed episodes by :attr:`Trajectory.failure`."""
    seconds: float
    """Duration of this evaluation and of those that it continues."""
    pass_at: dict[int, Interval]
    """Probability, for each j up to k, that at least one of j episodes of a task succeeds."""
    pass_all: dict[int, Interval]
    """Probability, for each j up to k, that all of j episodes of a task succeed (tau-bench's pass^k)."""
    trajectories: list[Trajectory] = field(repr=False)
    distinct: int = 0
    """Number of distinct tasks: graded one-turn tasks with the same observation count once, and each other one too."""
    tasks_low: float = 0.0
    """Lower bound of the interval that counts each distinct task once, however often it was played."""
    tasks_high: float = 1.0
    cut: int = 0
    """Number of answers that ended at a limit of tokens."""

    @property
    def repeats(self) -> bool:
        """True if some seeds gave the same task."""
        return self.distinct < self.n

    @property
    def wrong(self) -> int:
        """Number of episodes that completed without success."""
        return sum(t.complete and not t.success for t in self.trajectories)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, without the trajectories."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "trajectories"}


def evaluate(
    agent: Agent,
    env_id: str,
    kwargs: dict[str, Any] | None = None,
    *,
    n: int | None = None,
    k: int = 1,
    seed: int = 0,
    wrappers: dict[str, dict[str, Any]] | None = None,
    options: dict[str, Any] | None = None,
    tasks: Sequence[Task] = (),
    manager: RolloutManager | None = None,
    played: Iterable[Trajectory] = (),
    seconds: float = 0.0,
    watch: Callable[[Trajectory], None] | None = None,
) -> Evaluation:
    """Play the tasks with the seeds ``seed`` .. ``seed + n - 1``, ``k`` times each.

    For a data set, the tasks are its first ``n`` rows, in order.

    Args:
        n: number of tasks; by default all of a data set, and 100 generated tasks.
        tasks: the tasks, such as a panel's, instead of those that the arguments before describe; ``env_id`` names them.
        k: episodes of each task; they start in the same state and differ in the agent's random numbers.
        played: episodes of an earlier, unfinished evaluation; only those that failed are played again.
        seconds: duration of the episodes in ``played``, to which the time of the others is added.
    """
    refuse_running_loop("await asyncio.to_thread(evaluate, ...)")
    started = time.perf_counter()
    n, k, seed = checked_arguments("evaluate", evaluate, {"n": n, "k": k, "seed": seed}).values()
    if not 1 <= k <= MOST_TASKS:
        raise UsageError(f"k must be at least 1 and at most {MOST_TASKS:,}, got {k}")
    tasks = tasks or tasks_of(env_id, kwargs, n, seed, wrappers, options)
    trajectories, rest = to_play(tasks, k, played)
    if manager is None:
        with RolloutManager(agent) as plain:
            plain.play(rest, watch)
    else:
        manager.play(rest, watch)
    seconds += time.perf_counter() - started if rest or not seconds else 0.0
    return summarise(env_id, trajectories, k, seconds)


def to_play(
    tasks: Sequence[Task], k: int, played: Iterable[Trajectory] = ()
) -> tuple[list[Trajectory], list[Trajectory]]:
    """List the episodes of an evaluation, with those already played in their places.

    Args:
        tasks: each is played ``k`` times.
        played: episodes of an earlier evaluation; failed ones are played again.

    Returns:
        All episodes, the ``k`` of a task next to each other, and those still to be played.
    """
    known = {(key_of(t.task), t.member): t for t in played if t.complete}
    trajectories, rest = [], []
    for number, task in enumerate(tasks):
        key = key_of(task) if known else ""
        for member in range(k):
            earlier = known.get((key, member))
            trajectories.append(earlier or Trajectory(task, group=number, member=member))
            if earlier is None:
                rest.append(trajectories[-1])
    return trajectories, rest


def key_of(task: Task) -> str:
    """Return a text that is equal for equal tasks, even if one was read from a file."""
    return json.dumps([task.env_id, task.seed, task.kwargs, task.options], sort_keys=True, default=str)


def tasks_of(
    env_id: str,
    kwargs: dict[str, Any] | None = None,
    n: int | None = None,
    seed: int = 0,
    wrappers: dict[str, dict[str, Any]] | None = None,
    options: dict[str, Any] | None = None,
) -> list[Task]:
    """Build the tasks of an evaluation.

    Args:
        n: number of tasks; by default all of a data set, and 100 generated tasks.
        seed: seed of the first task; the others count up.
    """
    env_spec, kwargs, options = spec(env_id), kwargs or {}, options or {}
    numbered = env_spec.indexed and "index" not in options
    if numbered:
        with contextlib.closing(env_spec.make(**kwargs)) as env:
            available = env.num_tasks()
        n = available if n is None else n
        if n > available:
            raise UsageError(f"{env_id} has {available} tasks, fewer than the {n} requested")
    if n is not None and not 1 <= n <= MOST_TASKS:
        raise UsageError(f"an evaluation has at least 1 task and at most {MOST_TASKS:,}, got n={n}")
    tasks = []
    for i in range(DEFAULT_TASKS if n is None else n):
        own = {**options, "index": i} if numbered else options
        tasks.append(Task(env_id, seed + i, kwargs, wrappers or {}, own))
    return tasks


def summarise(env_id: str, trajectories: Sequence[Trajectory], k: int, seconds: float) -> Evaluation:
    """Compute the metrics of an evaluation; see :func:`success_rates`."""
    n, (success, low, high), at_least_one, all_of_them = success_rates(trajectories, k)
    by_task = _graded(trajectories, k)
    graded = [t for each in by_task for t in each]
    shown = [[(turn.observation, *turn.images) for turn in each[0].turns] for each in by_task if each]
    one_turn = {len(turns) for turns in shown} == {1} and _has_one_turn(trajectories[0].task)
    times = Counter(turns[0] if one_turn else i for i, turns in enumerate(shown))
    tosses = len(shown) ** 2 / max(1, sum(c * c for c in times.values()))  # Kish's effective sample size
    tasks_low, tasks_high = wilson_interval(success * tosses, tosses) if tosses else (0.0, 1.0)
    return Evaluation(
        env_id=env_id,
        n=n,
        k=k,
        success=success,
        low=low,
        high=high,
        reward=sum(t.own_reward for t in graded) / max(1, len(graded)),
        turns=sum(len(t.turns) for t in trajectories) / len(trajectories),
        failed=sum(t.status == "failed" for t in trajectories),
        failures=dict(Counter(t.failure or "unknown" for t in trajectories if t.status == "failed")),
        seconds=seconds,
        pass_at=at_least_one,
        pass_all=all_of_them,
        trajectories=list(trajectories),
        distinct=len(times) + n - len(shown),
        tasks_low=tasks_low,
        tasks_high=tasks_high,
        cut=sum(turn.finish == "length" for t in trajectories for turn in t.turns),
    )


def success_rates(
    trajectories: Sequence[Trajectory], k: int
) -> tuple[int, Interval, dict[int, Interval], dict[int, Interval]]:
    """Return the number of tasks, the success, and pass@j and pass^j for every j up to ``k``.

    Episodes that failed are left out.

    Args:
        trajectories: the ``k`` of a task are next to each other.
    """
    wins = [(len(each), sum(bool(t.success) for t in each)) for each in _graded(trajectories, k) if each]
    return (
        len(trajectories) // k,
        mean_interval([c / size for size, c in wins]),
        {j: mean_interval([pass_at(size, c, j) for size, c in wins if size >= j]) for j in range(1, k + 1)},
        {j: mean_interval([pass_all(size, c, j) for size, c in wins if size >= j]) for j in range(1, k + 1)},
    )


def _graded(trajectories: Sequence[Trajectory], k: int) -> list[list[Trajectory]]:
    """Return the episodes of each task that did not fail."""
    return [[t for t in trajectories[i : i + k] if t.complete] for i in range(0, len(trajectories), k)]


def _has_one_turn(task: Task) -> bool:
    """Return whether episodes of a task have exactly one turn; false if its environment cannot be built here."""
    try:
        with contextlib.closing(spec(task.env_id).make(**task.kwargs)) as env:
            return getattr(env, "max_turns", None) == 1
    except Exception:
        return False


def pass_at(n: int, c: int, k: int) -> float:
    """The probability that one of ``k`` out of ``n`` episodes, ``c`` of them successful, succeeds.

    1 - C(n-c, k) / C(n, k), the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, equation 1).
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_all(n: int, c: int, k: int) -> float:
    """The probability that ``k`` of ``n`` episodes all succeed: C(c, k) / C(n, k) (tau-bench, arXiv 2406.12045)."""
    return math.comb(c, k) / math.comb(n, k)


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of values in 0 .. 1, and its bounds with at least 95 % confidence.

    Wilson's interval for as many Bernoulli trials: no distribution on 0 .. 1 with the same mean has a larger variance.
    """
    if not values:
        return 0.0, 0.0, 1.0
    mean = sum(values) / len(values)
    return mean, *wilson_interval(mean * len(values), len(values))


def wilson_interval(wins: float, n: float, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval for a proportion.

    Args:
        wins: successes, which may be fractional.
        z: quantile of the normal distribution; 1.96 gives 95 %.
    """
    share = wins / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    if wins == 0:  # exactly, without the rounding
        low = 0.0
    if wins == n:
        high = 1.0
    return low, high
