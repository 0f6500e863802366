"""The limits, counters and services that all sessions of a server share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollenv.rollout.records.health import Health
from rollenv.rollout.workers.pool import WorkerPool
from rollenv.serve.quotas import FairQueue, Quota, RateLimiter

#: An owner's sessions with an environment get workers of their own once this number of them ended their workers or
#: hung, if that is at least this share of them. The counts are halved after so many sessions.
_HARM, _SHARE, _OPENED = 3, 0.2, 100


@dataclass(frozen=True)
class SessionLimits:
    """Limits of all sessions."""

    sessions: int = 1024
    """Sessions at the same time."""
    each: Quota = field(default_factory=Quota)
    """The quota of an owner whose token sets none."""
    idle: float = 1800.0
    """Seconds without a call after which a session ends."""
    gone: float = 300.0
    """Seconds without a connection after which a session ends, if it had one."""
    total: float = 86_400.0
    """Seconds after which a session ends in any case."""
    reset: float = 300.0
    """Seconds for building and for each reset of an environment."""
    step: float = 120.0
    """Seconds for every other call."""
    replays: int = 3
    """Repetitions of a call whose worker was lost."""
    running: int = 256
    """Calls into environments at the same time."""
    any_arguments: bool = False
    """Take every constructor argument, also those that name files and programs."""


@dataclass
class EnvRecord:
    """The outcomes of one owner's sessions with one environment."""

    opened: float = 0.0
    harm: float = 0.0
    """The number of those that ended their worker or hung in it."""

    @property
    def needs_own_worker(self) -> bool:
        """True if they harm their workers again and again."""
        return self.harm >= _HARM and self.harm >= _SHARE * self.opened

    def add(self) -> None:
        """Count one more session. Old ones count less and less."""
        if self.opened > _OPENED:
            self.opened, self.harm = self.opened / 2, self.harm / 2
        self.opened += 1


@dataclass
class SessionCounters:
    """Events since the start, for ``/metrics``."""

    opened: int = 0
    refused: int = 0
    expired: int = 0
    calls: int = 0
    replays: int = 0


class SessionContext:
    """The parts of a server that every session uses."""

    def __init__(self, workers: WorkerPool, limits: SessionLimits, limiter: RateLimiter | None = None):
        self.workers, self.limits, self.limiter = workers, limits, limiter or RateLimiter(limits.each)
        self.queue = FairQueue(limits.running)
        self.counters, self.health = SessionCounters(), Health(max_backoff=0.0)
        self.on_call_time: Callable[[str, float], None] = lambda method, seconds: None
        """Called with the method and the seconds of each call that succeeded."""
        self.on_call: Callable[[Any, str, list[Any], Any], None] = lambda session, method, args, answer: None
        """Called with the session, method, arguments and answer of each call that succeeded."""
        self.records: defaultdict[tuple[str, str], EnvRecord] = defaultdict(EnvRecord)
        """By owner and environment id."""
