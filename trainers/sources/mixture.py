"""A mixture of sources with fixed ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.rollout.types import Group, Task
from rollenv.trainers.sources.base import SourcedTask, TaskSource, count, origin_of, read_state


class MixtureSource(Iterator[Task]):
    """Interleaves several sources so that each always has its share of tasks, to within one task.

    The order depends on the ratios alone: Tijdeman's algorithm for the chairman assignment problem (Discrete
    Mathematics 32, 1980). With shares ``s_i`` of ``n`` sources, task ``t`` is taken, among the sources with
    ``t s_i - drawn_i >= 1 / (2n - 2)``, from the one with the earliest deadline; then
    ``|t s_i - drawn_i| <= 1 - 1 / (2n - 2)`` always. Ratios count all tasks, including those with failed groups.

    Args:
        sources: the ratio, above 0, and the source, by name. The name is the prefix of that source's metrics.
    """

    def __init__(self, sources: Mapping[str, tuple[float, TaskSource]]):
        if not sources:
            raise UsageError("a mixture has at least one source")
        if len({id(source) for _, source in sources.values()}) < len(sources):
            raise UsageError("a source is in the mixture twice; create one for each name")
        weights = {name: _ratio(name, ratio) for name, (ratio, _) in sources.items()}
        total = sum(weights.values())
        self.sources = {name: source for name, (_, source) in sources.items()}
        self.shares = {name: weight / total for name, weight in weights.items()}
        self.drawn = dict.fromkeys(self.sources, 0)
        self._outcomes = {name: Outcomes() for name in self.sources}

    def __next__(self) -> Task:
        name = self._next()
        task = next(self.sources[name])
        self.drawn[name] += 1
        return SourcedTask.of(task, (name, *getattr(task, "origin", ())))

    def _next(self) -> str:
        draw, n = sum(self.drawn.values()) + 1, len(self.shares)
        if n == 1:
            return next(iter(self.shares))
        margin = Fraction(1, 2 * n - 2)
        behind = {name: draw * share - self.drawn[name] for name, share in self.shares.items()}
        due = [name for name in self.shares if behind[name] >= margin]
        return min(due, key=lambda name: (1 - margin - behind[name]) / self.shares[name])

    def record(self, task: Task, group: Group) -> None:
        name, *rest = origin_of(task, self)
        if name not in self.sources:
            raise UsageError(f"the mixture has no source {name!r}; it has {', '.join(self.sources)}")
        self.sources[str(name)].record(SourcedTask.of(task, tuple(rest)), group)
        self._outcomes[str(name)].add(group)

    def state_dict(self) -> dict[str, Any]:
        return {
            name: {
                "drawn": self.drawn[name],
                "outcomes": self._outcomes[name].state_dict(),
                "state": source.state_dict(),
            }
            for name, source in self.sources.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        def read(saved: Mapping[str, Any]) -> dict[str, tuple[int, Outcomes, Any]]:
            if set(saved) != set(self.sources):
                raise UsageError(
                    f"the state has the sources {', '.join(saved)}; this mixture {', '.join(self.sources)}"
                )
            return {n: (count(one["drawn"]), Outcomes(*one["outcomes"]), one["state"]) for n, one in saved.items()}

        values, before = read_state(self, state, read), {n: s.state_dict() for n, s in self.sources.items()}
        try:
            for name, source in self.sources.items():
                source.load_state_dict(values[name][2])
        except UsageError:
            for name, source in self.sources.items():
                source.load_state_dict(before[name])
            raise
        self.drawn = {name: values[name][0] for name in self.sources}
        self._outcomes = {name: values[name][1] for name in self.sources}

    def metrics(self) -> dict[str, float]:
        """Return the metrics of each source, with the mean success and reward recorded since the last call."""
        metrics: dict[str, float] = {}
        for name, source in self.sources.items():
            own = {"drawn": self.drawn[name], **source.metrics(), **self._outcomes[name].take()}
            metrics |= {f"{name}/{key}": value for key, value in own.items()}
        return metrics


class Outcomes:
    """Sums over trajectories."""

    def __init__(self, n: int = 0, success: int = 0, reward: float = 0.0):
        self.n, self.success, self.reward = n, success, reward

    def add(self, group: Group) -> None:
        """Add the trajectories of a group that did not fail."""
        for trajectory in group.complete:
            self.n += 1
            self.success += bool(trajectory.success)
            self.reward += trajectory.own_reward

    def take(self) -> dict[str, float]:
        """Return the means, if there are any, and reset the counts."""
        n, success, reward = self.n, self.success, self.reward
        self.n, self.success, self.reward = 0, 0, 0.0
        return {"success": success / n, "reward": reward / n} if n else {}

    def state_dict(self) -> list[float]:
        """Return the constructor arguments of a copy, as JSON data."""
        return [self.n, self.success, self.reward]


def _ratio(name: str, ratio: float) -> Fraction:
    if not name or "/" in name:
        raise UsageError(f"a source's name is the prefix of its metrics; it cannot be {name!r}")
    try:
        exact = Fraction(str(ratio))  # 0.1 as written, not the nearest binary fraction
    except ValueError:
        exact = Fraction(0)
    if exact <= 0:
        raise UsageError(f"the ratio of {name} must be a number above 0, got {ratio!r}; leave out unwanted sources")
    return exact
