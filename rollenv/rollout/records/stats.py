"""Statistics of kept and dropped trajectories; they show the bias of redundancy towards short episodes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from rollenv.rollout.types import Group, Task, Trajectory


@dataclass(slots=True)
class Tally:
    """Sums over trajectories."""

    trajectories: int = 0
    turns: int = 0
    tokens: int = 0
    seconds: float = 0.0
    agent_seconds: float = 0.0
    reward: float = 0.0
    replays: int = 0

    def add(self, trajectory: Trajectory) -> None:
        """Add a trajectory."""
        self.trajectories += 1
        self.turns += len(trajectory.turns)
        self.tokens += sum(len(turn.response_ids) for turn in trajectory.turns)
        self.seconds += trajectory.seconds
        self.agent_seconds += trajectory.agent_seconds
        self.reward += trajectory.reward
        self.replays += trajectory.replays


@dataclass(slots=True)
class RolloutStats:
    """Tallies of trajectories by what became of them. Cancelled ones are shorter than they would have been."""

    of: dict[str, Tally] = field(default_factory=dict)
    replacements: int = 0
    """Number of members that were started to replace failed ones."""
    unfinished: list[Task] = field(default_factory=list)
    """Tasks of groups that were cancelled."""

    def kept(self, group: Group) -> None:
        """Count a group that is part of the batch."""
        for trajectory in group.complete:
            self._add("kept", trajectory)

    def filtered(self, group: Group) -> None:
        """Count a group that a filter dropped."""
        for trajectory in group:
            self._add("filtered", trajectory)

    def expired(self, trajectory: Trajectory) -> None:
        """Count a complete trajectory that was too stale."""
        self._add("expired", trajectory)

    def cancelled(self, trajectory: Trajectory) -> None:
        """Count a trajectory that was cancelled after it got a worker."""
        if trajectory.worker:
            self._add("cancelled", trajectory)

    def failed(self, trajectory: Trajectory) -> None:
        """Count a trajectory that failed."""
        self._add("failed", trajectory)

    def _add(self, fate: str, trajectory: Trajectory) -> None:
        self.of.setdefault(fate, Tally()).add(trajectory)

    def absorb(self, other: RolloutStats) -> None:
        """Add the statistics of another rollout."""
        self.replacements += other.replacements
        for fate, tally in other.of.items():
            own = self.of.setdefault(fate, Tally())
            for f in fields(Tally):
                setattr(own, f.name, getattr(own, f.name) + getattr(tally, f.name))

    def metrics(self) -> dict[str, float]:
        """Counts and means per trajectory, for a log.

        ``bias/turns`` is the mean length of kept trajectories over that of all that did not fail: 1 without bias.
        """
        out: dict[str, float] = {"replacements": self.replacements}
        for fate, tally in self.of.items():
            out[f"{fate}/trajectories"] = tally.trajectories
            for name in ("turns", "tokens", "seconds", "agent_seconds", "reward"):
                out[f"{fate}/{name}"] = getattr(tally, name) / tally.trajectories
        out["replays"] = sum(tally.replays for tally in self.of.values())
        kept = self.of.get("kept")
        if kept and kept.turns:
            others = [t for fate, t in self.of.items() if fate in ("kept", "cancelled", "filtered", "expired")]
            mean = sum(t.turns for t in others) / sum(t.trajectories for t in others)
            out["bias/turns"] = kept.turns / kept.trajectories / mean
            seconds = sum(t.seconds for t in others) / sum(t.trajectories for t in others)
            out["bias/seconds"] = 1.0
            if seconds:
                out["bias/seconds"] = kept.seconds / kept.trajectories / seconds
        return out
