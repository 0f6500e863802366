"""Quotas, fair queues and counters that all sessions share, so that a busy client does not delay others."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollenv.remote.protocol import ServerFull, TooFast
from rollenv.rollout.records.health import Health
from rollenv.rollout.workers.pool import WorkerPool

#: Seconds between two checks of time limits.
_CHECK_EVERY = 0.05

#: Seconds after which a call frees its slot, so that an environment that hangs does not occupy one.
PATIENCE = 1.0

_MINUTE = 60.0


@dataclass(frozen=True)
class Quota:
    """The limits of one owner; 0 is no limit."""

    sessions: int = 0
    """Maximum open sessions, and maximum open sandboxes."""
    rate: float = 0.0
    """Requests per second; a burst may have twice as many."""
    compute: float = 0.0
    """Seconds per minute: processor time in environments and wall-clock time in sandboxes."""

    def __or__(self, usual: Quota) -> Quota:
        return Quota(self.sessions or usual.sessions, self.rate or usual.rate, self.compute or usual.compute)


class RateLimiter:
    """Counts the requests and compute of owners against their quotas."""

    def __init__(self, usual: Quota, own: Mapping[str, Quota] | None = None):
        self._usual, self._own = usual, dict(own or {})
        self._ready: dict[str, float] = {}
        self._worked: dict[str, float] = {}

    def quota(self, owner: str) -> Quota:
        own = self._own.get(owner)
        return self._usual if own is None else own | self._usual

    def is_limited(self, owner: str) -> bool:
        """Return whether an owner has a limit of requests or compute."""
        allowed = self.quota(owner)
        return bool(allowed.rate or allowed.compute)

    def take(self, owner: str) -> None:
        """Count a request.

        Raises:
            TooFast: the owner has exceeded its rate or its compute.
        """
        allowed, now = self.quota(owner), time.monotonic()
        if allowed.compute and (wait := self._worked.get(owner, 0.0) - now) > 0:
            text = f"{owner} has used its {allowed.compute:g} seconds of computing in a minute"
            raise TooFast(text, retry_after=wait)
        if allowed.rate:
            ready = max(self._ready.get(owner, 0.0), now - 2.0) + 1 / allowed.rate  # its time at an even rate
            if ready > now:
                raise TooFast(f"{owner} sends more than {allowed.rate:g} requests a second", retry_after=ready - now)
            self._ready[owner] = ready

    def spend(self, owner: str, seconds: float) -> None:
        """Count the compute of an owner."""
        allowed = self.quota(owner)
        if allowed.compute:
            minute = time.monotonic() - _MINUTE
            self._worked[owner] = max(self._worked.get(owner, 0.0), minute) + seconds * _MINUTE / allowed.compute


class TimeLimits:
    """Time limits of many short calls, checked every twentieth of a second by one timer.

    A timer for each step would cost a fifth of the server's time.
    """

    def __init__(self) -> None:
        self._running: set[TimeLimited] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, limited: TimeLimited, seconds: float) -> None:
        """Start a limit, which expires unless it is stopped before."""
        limited._running, limited.end = self._running, time.monotonic() + seconds
        self._running.add(limited)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_EVERY, self._check)

    def _check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_EVERY, self._check) if self._running else None
        now = time.monotonic()
        for limited in [each for each in self._running if now > each.end]:
            if limited.stop():  # unless another one that expired has stopped it
                limited.expire()


class TimeLimited:
    """A thing that :class:`TimeLimits` limits; a subclass defines :meth:`expire`."""

    __slots__ = ("_running", "end")
    _running: set[TimeLimited]
    end: float

    def stop(self) -> bool:
        """Stop the limit before it expires; return false if it has expired or was stopped."""
        if self not in self._running:
            return False
        self._running.discard(self)
        return True

    def expire(self) -> None:
        """Handle the end of the time. Called once."""
        raise NotImplementedError


class FairQueue:
    """Admits a fixed number of calls at a time; owners that wait take turns.

    Args:
        width: maximum number of admitted calls, not counting long ones.
        patience: seconds after which a call counts as long; None for never.
    """

    def __init__(self, width: int, patience: float | None = PATIENCE):
        self.width = self._free = width
        self.patience, self.time_limits = patience, TimeLimits()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def turn(self, owner: str) -> QueueSlot:
        """Return a turn, which an ``async with`` block waits for and holds."""
        return QueueSlot(self, owner)

    def enter(self) -> bool:
        """Take a slot, which :meth:`leave` frees; return false if none is free."""
        if not self._free or self._waiting:
            return False
        self._free -= 1
        return True

    def leave(self) -> None:
        """Free a slot."""
        self._free += 1
        while self._free and self._waiting:
            owner, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns  # at the end of the queue
            if not turn.done():
                turn.set_result(None)
                self._free -= 1


class QueueSlot(TimeLimited):
    """One turn, for an ``async with`` block or from :meth:`begin` to :meth:`leave`."""

    __slots__ = ("_inside", "_owner", "_queue")

    def __init__(self, queue: FairQueue, owner: str):
        self._queue, self._owner, self._inside = queue, owner, False

    def begin(self) -> bool:
        """Start the turn; return false if no slot is free."""
        if self._queue.enter():
            self._hold()
        return self._inside

    def leave(self) -> None:
        """End the turn, if it has not ended."""
        if self._inside:
            self._inside = False
            if self._queue.patience is not None:
                self.stop()
            self._queue.leave()

    def expire(self) -> None:
        """Give up the slot of a long call, which continues without one."""
        self.leave()

    async def __aenter__(self) -> None:
        queue = self._queue
        if not queue.enter():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue._waiting.setdefault(self._owner, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    queue.leave()  # the turn was granted at the same moment
                raise
        self._hold()

    async def __aexit__(self, *problem: object) -> None:
        self.leave()

    def _hold(self) -> None:
        self._inside = True
        if self._queue.patience is not None:
            self._queue.time_limits.start(self, self._queue.patience)


#: An owner's sessions with an environment get workers of their own once this number of sessions, and this share, killed
#: their workers or hung. The counts are halved after so many sessions.
_HARM, _SHARE, _OPENED = 3, 0.2, 100


@dataclass(frozen=True)
class SessionLimits:
    """Limits of all sessions."""

    sessions: int = 1024
    """Maximum open sessions."""
    each: Quota = field(default_factory=Quota)
    """Quota of an owner whose token sets none."""
    idle: float = 1800.0
    """Seconds without a call after which a session ends."""
    gone: float = 300.0
    """Seconds after which a session ends whose connection has ended."""
    total: float = 86_400.0
    """Seconds after which a session ends in any case."""
    reset: float = 300.0
    """Deadline for building and for each reset of an environment, in seconds."""
    step: float = 120.0
    """Deadline for every other call, in seconds."""
    replays: int = 3
    """Maximum repetitions of a call whose worker was lost."""
    running: int = 256
    """Maximum concurrent calls of environments."""
    any_arguments: bool = False
    """Accept all constructor arguments, including those that name files and programs."""


@dataclass
class EnvRecord:
    """The outcomes of one owner's sessions with one environment."""

    opened: float = 0.0
    harm: float = 0.0
    """Number of sessions that killed their worker or hung in it."""

    @property
    def needs_own_worker(self) -> bool:
        """True if the sessions harm their workers repeatedly."""
        return self.harm >= _HARM and self.harm >= _SHARE * self.opened

    def add(self) -> None:
        """Count a session; old ones lose weight."""
        if self.opened > _OPENED:
            self.opened, self.harm = self.opened / 2, self.harm / 2
        self.opened += 1


def stopping() -> ServerFull:
    """Build the error for new sessions and sandboxes while the server stops."""
    return ServerFull("the server is about to stop", retry_after=5.0, draining=True)


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
        """Called with the method and the seconds of each successful call."""
        self.on_call: Callable[[Any, str, list[Any], Any], None] = lambda env, method, args, answer: None
        """Called with the :class:`.ReplayedEnv`, method, arguments and answer of each successful call."""
        self.records: defaultdict[tuple[str, str], EnvRecord] = defaultdict(EnvRecord)
        """Records by owner and environment id."""
