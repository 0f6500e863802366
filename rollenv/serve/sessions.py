"""SessionManager: environments in worker processes, by name, with leases; a lost one is replayed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollenv.core import UsageError
from rollenv.env_spec import EnvSpec
from rollenv.registry import is_elsewhere, spec
from rollenv.remote.protocol import ServerFull, SessionGone
from rollenv.rollout.records.health import Health
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import Views
from rollenv.rollout.workers.pool import WorkerPool
from rollenv.serve import arguments
from rollenv.serve.deadlines import Deadlines
from rollenv.serve.quotas import Quota, FairQueue, RateLimiter
from rollenv.serve.logs import audit
from rollenv.serve.session import Session

logger = logging.getLogger(__name__)

#: Seconds between two looks for sessions whose lease is over.
_REAP_EVERY = 1.0

#: An owner's sessions with an environment are kept from others once so many ended their workers or hung, if these
#: are such a share of the sessions; and how many sessions count.
_HARM, _SHARE, _OPENED = 3, 0.2, 100


@dataclass(frozen=True)
class Terms:
    """What clients get."""

    sessions: int = 1024
    """How many there are at the same time."""
    each: Quota = field(default_factory=Quota)
    """What one owner gets, whose token says nothing else."""
    idle: float = 1800.0
    """Seconds without a call after which a session ends."""
    gone: float = 300.0
    """Seconds after which a session ends whose client's connection has ended, where it had one."""
    total: float = 86_400.0
    """Seconds after which it ends in any case."""
    reset: float = 300.0
    """Seconds for building and for each reset of an environment."""
    step: float = 120.0
    """Seconds for every other call."""
    replays: int = 3
    """How often a call is made again whose worker was lost."""
    running: int = 256
    """Calls into environments at the same time."""
    any_arguments: bool = False
    """Take every constructor argument, also those that name files and programs."""


@dataclass
class Record:
    """What became of an owner's sessions with an environment."""

    opened: float = 0.0
    harm: float = 0.0
    """How often one of them ended its worker or hung in it."""

    @property
    def bad(self) -> bool:
        """Whether they do so again and again, so that they had better have workers of their own."""
        return self.harm >= _HARM and self.harm >= _SHARE * self.opened

    def add(self) -> None:
        """One more is opened. Those of long ago count less and less."""
        if self.opened > _OPENED:
            self.opened, self.harm = self.opened / 2, self.harm / 2
        self.opened += 1


@dataclass
class Counts:
    """What happened since the start, for ``/metrics``."""

    opened: int = 0
    refused: int = 0
    expired: int = 0
    calls: int = 0
    replays: int = 0


class SessionManager:
    """All sessions of a server."""

    def __init__(self, workers: WorkerPool, terms: Terms, limiter: RateLimiter | None = None):
        self.workers, self.terms, self.limiter = workers, terms, limiter or RateLimiter(terms.each)
        self.sessions: dict[str, Session] = {}
        self.session_class: type[Session] = Session
        self.deadlines = Deadlines()
        self.gate = FairQueue(terms.running)
        self.counts, self.health = Counts(), Health(max_backoff=0.0)
        self.timed: Callable[[str, float], None] = lambda method, seconds: None
        """Called with the time of every call that succeeded."""
        self.seen: Callable[[Session, str, list[Any], Any], None] = lambda session, method, args, answer: None
        """Called with every call of a session that succeeded."""
        self.records: defaultdict[tuple[str, str], Record] = defaultdict(Record)
        """By owner and environment."""
        self.draining = False
        self._reaper: asyncio.Task[None] | None = None

    async def open(
        self, name: str, owner: str, env_id: str, settings: Mapping[str, Any] | None = None, *, lasting: bool = False
    ) -> Session:
        """Open a session, or return the one of this name and owner.

        Args:
            name: of the session; nobody else should be able to guess it.
            env_id: an id of :func:`rollenv.list_envs`.
            settings: "kwargs" (constructor arguments), "wrappers" and "views" (draw after each turn; "board" as data).
            lasting: whether it outlasts its connection. It is so before it is built, for it may be handed over first.

        Raises:
            ServerFull: there is no room.
            UnknownEnv: there is no such environment.
            UsageError: wrong arguments.
            EnvBroke: the environment could not be built.
        """
        if name in self.sessions:
            found = self.get(name, owner)
        else:
            if self.draining:
                self.counts.refused += 1
                raise ServerFull("the server is about to stop", retry_after=5.0, draining=True)
            found = self.add(name, owner, env_id, settings)
        found.lasting = found.lasting or lasting
        await found.built()
        return found

    def add(self, name: str, owner: str, env_id: str, settings: Mapping[str, Any] | None = None) -> Session:
        """Begin a session. Its environment is built by :meth:`Session.built`, or the first call.

        Args:
            env_id: an id of :func:`rollenv.list_envs`.
            settings: see :meth:`open`.

        Raises:
            ServerFull: there is no room.
            UnknownEnv: there is no such environment.
            UsageError: wrong arguments.
        """
        try:
            task, views = self._task(env_id, dict(settings or {}), name)
        except UsageError as error:
            audit("refused", owner, why=str(error))
            raise
        self._admit(owner)
        record = self.records[owner, env_id]
        record.add()
        found = self.sessions[name] = self.session_class(self, name, owner, task, views, record.bad)
        audit("open", owner, session=name[:6], env=env_id)
        return found

    def get(self, name: str, owner: str) -> Session:
        """A session by its name.

        Raises:
            SessionGone: there is none of this owner.
        """
        found = self.sessions.get(name)
        if found is not None and found.owner == owner:
            return found
        raise SessionGone("there is no such session: it was closed, its lease is over, or the server was restarted")

    def close(self, session: Session) -> None:
        """End a session; a call that runs is given up."""
        if self.sessions.pop(session.name, None) is not None:
            session.end()
            audit("close", session.owner, session=session.name[:6], env=session.task.env_id, calls=session.count)

    def start(self) -> None:
        """Begin to end sessions whose lease is over."""
        self._reaper = asyncio.get_running_loop().create_task(self._reap())

    async def stop(self) -> None:
        """End all sessions."""
        if self._reaper is not None:
            self._reaper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reaper
        for session in list(self.sessions.values()):
            self.close(session)

    async def drain(self, seconds: float) -> None:
        """Take no new sessions, and wait until the others have ended."""
        self.draining = True
        end = time.monotonic() + seconds
        while self.sessions and time.monotonic() < end:
            await asyncio.sleep(0.05)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _task(self, env_id: str, settings: dict[str, Any], name: str) -> tuple[Task, Views]:
        kwargs, wrappers = settings.pop("kwargs", {}), settings.pop("wrappers", {})
        wanted = settings.pop("views", False)
        views: Views = "board" if wanted == "board" else wanted is True
        if settings:
            raise UsageError(f"unknown setting {next(iter(settings))!r:.40}; there are kwargs, wrappers and views")
        env_spec, task = served(env_id), Task(env_id, 0, kwargs, wrappers)
        if not self.terms.any_arguments:
            arguments.check(env_spec, task.kwargs, task.wrappers)
        if not isinstance(name, str) or not 16 <= len(name) <= 64:
            raise UsageError("the name of a session has 16 to 64 characters")
        return task, views

    def _admit(self, owner: str) -> None:
        if len(self.sessions) >= self.terms.sessions:
            self.counts.refused += 1
            raise ServerFull(f"all {self.terms.sessions} sessions are taken", retry_after=1.0)
        most = self.limiter.quota(owner).sessions
        if most and sum(session.owner == owner for session in self.sessions.values()) >= most:
            self.counts.refused += 1
            raise ServerFull(f"all {most} sessions of this client are taken", retry_after=1.0)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(_REAP_EVERY)
            now = time.monotonic()
            for session in list(self.sessions.values()):
                since = now - session.used
                idle = since > self.terms.idle or (session.left and min(since, now - session.left) > self.terms.gone)
                if (idle and not session.busy) or now - session.opened > self.terms.total:
                    self.counts.expired += 1
                    self.close(session)


def served(env_id: str) -> EnvSpec:
    """What is registered under an id; never another server's, or what an id names in a folder or package of this host.

    Args:
        env_id: an id of :func:`rollenv.list_envs`.

    Raises:
        UnknownEnv: there is no such environment.
        UsageError: it is no id.
    """
    wrong = not isinstance(env_id, str) or "://" in env_id or len(env_id) > 200  # looking for near ones takes time
    if wrong or is_elsewhere(env_id):
        raise UsageError(f"{env_id!r:.80} is not an id of an environment of this server")
    return spec(env_id)
