"""Several sources, in fixed ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from rollenv.core import UsageError
from rollenv.rollout.types import Group, Task
from rollenv.trainers.sources.base import Drawn, TaskSource, count, origin_of, read_state


class MixtureSource(Iterator[Task]):
    """Draws from several sources so that after every number of draws each has had its share, to within one task.

    Which source is next follows from the ratios alone: Tijdeman's algorithm for the chairman assignment problem
    (Discrete Mathematics 32, 1980). With shares ``s_i`` of ``n`` sources, draw ``t`` goes, among the sources with
    ``t s_i - drawn_i >= 1 / (2n - 2)``, to the one that would soonest be too far behind; then
    ``|t s_i - drawn_i| <= 1 - 1 / (2n - 2)`` always. Ratios count drawn tasks, also those with failed groups.

    Args:
        sources: by name: the ratio, above 0, and the source. A name stands before that source's metrics.

    Raises:
        UsageError: no sources, a source twice, a ratio that is not a number above 0, or a name that is empty or has a
            slash.
    """

    def __init__(self, sources: Mapping[str, tuple[float, TaskSource]]):
        if not sources:
            raise UsageError("a mixture has at least one source")
        if len({id(source) for _, source in sources.values()}) < len(sources):
            raise UsageError("a source stands in the mixture twice; make one for each name")
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
        return Drawn.of(task, (name, *getattr(task, "origin", ())))

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
        self.sources[str(name)].record(Drawn.of(task, tuple(rest)), group)
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
        """Metrics of each source: its own, and the mean success and reward of what was recorded since the last call."""
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
        """Count the trajectories of a group that did not fail."""
        for trajectory in group.complete:
            self.n += 1
            self.success += trajectory.success
            self.reward += trajectory.reward

    def take(self) -> dict[str, float]:
        """Return the means, if there are any, and reset the counts."""
        n, success, reward = self.n, self.success, self.reward
        self.n, self.success, self.reward = 0, 0, 0.0
        return {"success": success / n, "reward": reward / n} if n else {}

    def state_dict(self) -> list[float]:
        """The arguments of another one like this, as JSON data."""
        return [self.n, self.success, self.reward]


def _ratio(name: str, ratio: float) -> Fraction:
    if not name or "/" in name:
        raise UsageError(f"a source's name stands before its metrics; it cannot be {name!r}")
    try:
        exact = Fraction(str(ratio))  # of 0.1 as written, not of the nearest binary fraction
    except ValueError:
        exact = Fraction(0)
    if exact <= 0:
        raise UsageError(f"the ratio of {name} must be a number above 0, got {ratio!r}; leave out what is not wanted")
    return exact
