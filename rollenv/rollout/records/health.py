"""The health of environments and workers: counts, latencies, failures in a row, quarantine."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rollenv.core.errors import RollenvError

#: Number of recent latencies of each operation, for the quantiles.
_REMEMBERED = 512

#: Consecutive failed attempts before an environment or worker is quarantined, and consecutive episodes in which the
#: agent or the reward function may fail.
_PATIENCE, _AGENT_PATIENCE = 3, 64


class EnvUnhealthy(RollenvError):
    """Every episode of an environment fails. The text has the id, the time of the first failure and the reasons."""


class AgentUnhealthy(RollenvError):
    """The agent fails in every episode. The text has the time of the first failure and the reasons."""


class RewardUnhealthy(RollenvError):
    """The reward function fails for every trajectory. The text has the time of the first failure and the reasons."""


@dataclass(slots=True)
class HealthRecord:
    """The record of one environment id, or of one worker."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    """Counts of operations ("reset", "step"), ends of episodes (see :meth:`ended`) and kinds of failure."""
    latencies: dict[str, deque[float]] = field(default_factory=dict)
    streak: int = 0
    """Number of failures since the last completed episode."""
    failed_episodes: int = 0
    """Number of failed episodes since the last completed one."""
    failing_since: float = 0.0
    """Time of the first of ``reasons``, in seconds since 1970."""
    max_backoff: float = 10.0
    resting_until: float = 0.0
    """End of the quarantine, on the monotonic clock. After more than three failures in a row, each quarantine is twice
    as long as the last, however many attempts fail during it."""
    rests: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Error texts since the last completed episode."""
    last_progress: float = 0.0
    """Time of the last successful operation, in seconds since 1970."""

    def ok(self, operation: str, seconds: float) -> None:
        """Record a successful operation."""
        self.counts[operation] += 1
        self.last_progress = time.time()
        recent = self.latencies.get(operation)
        if recent is None:
            recent = self.latencies[operation] = deque(maxlen=_REMEMBERED)
        recent.append(seconds)

    def failure(self, kind: str, text: str) -> None:
        """Record a failed operation. A lost worker adds nothing to the streak, because its cause is unknown."""
        now = time.monotonic()  # the time of day may be set back
        if not self.reasons:
            self.failing_since = time.time()
        self.counts[kind] += 1
        self.reasons[text[:200]] += 1
        if kind != "lost":
            self.streak += 1
            if self.streak > _PATIENCE and now >= self.resting_until:
                self.resting_until = now + min(self.max_backoff, 0.01 * 2.0**self.rests)
                self.rests += 1

    def ended(self, status: str) -> None:
        """Count the end of an episode: "completed", "failed", "cancelled", "agent_failed" or "reward_failed"."""
        self.counts[status] += 1
        if status == "completed":
            self.streak = self.failed_episodes = self.rests = 0
            self.resting_until = 0.0
            self.reasons.clear()
        elif status == "failed":
            self.failed_episodes += 1

    def absorb(self, other: HealthRecord) -> None:
        """Add the later record of another process."""
        self.counts += other.counts
        for operation, recent in other.latencies.items():
            self.latencies.setdefault(operation, deque(maxlen=_REMEMBERED)).extend(recent)
        if other.counts["completed"]:
            self.ended("completed")
            self.counts["completed"] -= 1
        self.failing_since = self.failing_since if self.reasons else other.failing_since
        self.reasons += other.reasons
        self.streak, self.failed_episodes = self.streak + other.streak, self.failed_episodes + other.failed_episodes
        self.last_progress = max(self.last_progress, other.last_progress)

    @property
    def backoff(self) -> float:
        """Seconds to wait before the next attempt."""
        return max(0.0, self.resting_until - time.monotonic())

    def _state(self) -> str:
        if self.backoff:
            return "quarantined"
        return "failing" if self.streak > _PATIENCE else "up"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with latencies as quantiles in seconds."""
        quantiles = {}
        for operation, recent in self.latencies.items():
            p50, p95, p99 = np.quantile(recent, (0.5, 0.95, 0.99)).tolist()
            quantiles[operation] = {"p50": p50, "p95": p95, "p99": p99}
        return {
            "name": self.name,
            "state": self._state(),
            "counts": dict(self.counts),
            "latency": quantiles,
            "streak": self.streak,
            "failing_since": self.failing_since if self.reasons else None,
            "reasons": dict(self.reasons.most_common(3)),
            "last_progress": self.last_progress or None,
        }


class Health:
    """Health records by environment id and by worker.

    Args:
        unhealthy_after: episodes of one environment that may fail in a row before :class:`EnvUnhealthy` is raised.
        max_backoff: longest quarantine, in seconds.
    """

    def __init__(self, unhealthy_after: int = 64, max_backoff: float = 10.0):
        self.unhealthy_after, self.max_backoff = unhealthy_after, max_backoff
        self.envs: dict[str, HealthRecord] = {}
        self.workers: dict[str, HealthRecord] = {}
        self.agent, self.reward = HealthRecord("agent"), HealthRecord("reward")
        #: The last failures: seconds since 1970, environment id, worker, kind, text.
        self.events: deque[tuple[float, str, str, str, str]] = deque(maxlen=100)

    def env(self, env_id: str) -> HealthRecord:
        """The record of an environment id."""
        return self.envs.get(env_id) or self.envs.setdefault(env_id, HealthRecord(env_id, max_backoff=self.max_backoff))

    def worker(self, name: str) -> HealthRecord:
        """The record of a worker."""
        return self.workers.get(name) or self.workers.setdefault(name, HealthRecord(name, max_backoff=self.max_backoff))

    def avoids(self, worker: str) -> bool:
        """Return whether a worker is in quarantine."""
        record = self.workers.get(worker)
        return record is not None and record.backoff > 0

    def failed(self, env_id: str, worker: str, kind: str, text: str) -> None:
        """Record a failed operation; ``worker`` is empty if there was none yet."""
        if self.events and self.events[-1][1:] == (env_id, worker, kind, text):
            self.events.pop()  # every session on a worker fails with it
        self.events.append((time.time(), env_id, worker, kind, text))
        self.env(env_id).failure(kind, text)
        if worker:
            self.worker(worker).failure(kind, text)

    def ended(self, env_id: str, worker: str, status: str, error: str = "") -> None:
        """Record the end of an episode.

        Raises:
            EnvUnhealthy: the environment failed too many times in a row.
            AgentUnhealthy: the agent failed too many times in a row.
            RewardUnhealthy: the reward function failed too many times in a row.
        """
        record = self.env(env_id)
        record.ended(status)
        if worker:
            self.worker(worker).ended(status)
        for other, its_failure in ((self.agent, "agent_failed"), (self.reward, "reward_failed")):
            if status == its_failure:
                other.failure("raised", error)
                other.ended("failed")
            elif status == "completed":
                other.ended("completed")
            else:  # the agent and the reward function had no part in it
                other.ended("cancelled")
        if record.failed_episodes >= self.unhealthy_after:
            raise EnvUnhealthy(
                f"{env_id} is unhealthy: its last {self._row(record)}. `rollenv check {env_id}` looks at the "
                "environment itself"
            )
        if self.agent.failed_episodes >= _AGENT_PATIENCE:
            raise AgentUnhealthy(f"the agent is unhealthy: its last {self._row(self.agent)}")
        if self.reward.failed_episodes >= _AGENT_PATIENCE:
            raise RewardUnhealthy(f"the reward function is unhealthy: its last {self._row(self.reward)}")

    def absorb(self, other: Health, prefix: str = "") -> None:
        """Add the health of another process, with a prefix for the names of its workers."""
        for record in other.envs.values():
            self.env(record.name).absorb(record)
        for record in other.workers.values():
            self.worker(prefix + record.name).absorb(record)
        self.agent.absorb(other.agent)
        self.reward.absorb(other.reward)
        for when, env_id, worker, kind, text in other.events:
            self.events.append((when, env_id, worker and prefix + worker, kind, text))

    @staticmethod
    def _row(record: HealthRecord) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.failing_since))
        reasons = "; ".join(f"{n} times: {text}" for text, n in record.reasons.most_common(3))
        return f"{record.failed_episodes} episodes failed, since {since}. {reasons}"

    def snapshot(self, workers: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
        """All records as plain data, merged with the pool's report of its workers."""
        reported = {w["worker"]: w for w in workers}
        records = {name: record.to_dict() for name, record in self.workers.items()}
        return {
            "time": time.time(),
            "envs": [record.to_dict() for record in self.envs.values()],
            "workers": [
                {**records.get(name, {"name": name}), **reported.get(name, {"state": "gone"})}
                for name in sorted({*records, *reported})
            ],
            "events": list(self.events),
        }

    def save(self, path: str | Path, workers: Iterable[dict[str, Any]] = ()) -> None:
        """Write the snapshot as JSON, atomically."""
        partial = Path(f"{path}.partial")
        partial.write_text(json.dumps(self.snapshot(workers)) + "\n", encoding="utf-8")
        os.replace(partial, path)
