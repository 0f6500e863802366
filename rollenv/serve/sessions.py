"""Sessions: environments in worker processes by name, with leases."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import UsageError
from rollenv.core.registry import is_elsewhere, spec
from rollenv.remote.protocol import ServerFull, SessionGone, session_name
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import Views
from rollenv.rollout.workers.pool import WorkerPool
from rollenv.serve.logs import audit
from rollenv.serve.quotas import RateLimiter, SessionContext, SessionLimits, stopping
from rollenv.serve.session import EnvSession

#: Arguments whose texts choose among built-in variants of an environment.
_CHOICES = (
    "action_format", "answer_key", "goals", "images", "metric", "observation", "operators", "render_mode", "rewards",
    "rules", "separator", "size", "split", "variant",
)  # fmt: skip

#: Wrappers that only change observations. Others could run programs, read files or contact servers; a name of the form
#: "module:function" would import any module.
_WRAPPERS = frozenset(["concat", "concat_with_action", "episode_tracking"])


def _check(env_spec: EnvSpec, kwargs: Mapping[str, Any], wrappers: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse arguments that could make the server use files, programs, other servers or data sets."""
    for name, value in kwargs.items():
        if not _plain(value, texts=name in _CHOICES) and value != env_spec.kwargs.get(name):
            raise UsageError(
                f"{env_spec.id}: this server takes no {name}={value!r:.60} from clients: only numbers, and texts that "
                "choose among built-in variants; its administrator can allow others with --any-arguments"
            )
    for name, settings in wrappers.items():
        if name not in _WRAPPERS or not isinstance(settings, Mapping) or not _plain([*settings.values()], texts=False):
            raise UsageError(f"{env_spec.id}: this server puts no wrapper {name!r} around environments for clients")


def _plain(value: Any, *, texts: bool) -> bool:
    if value is None or isinstance(value, bool | int | float):
        return True
    if isinstance(value, str):
        return texts and len(value) <= 40 and "/" not in value and "\\" not in value
    if isinstance(value, list | tuple):
        return len(value) <= 1000 and all(_plain(each, texts=texts) for each in value)
    return isinstance(value, dict) and texts and all(_plain(each, texts=texts) for each in value.values())


#: Seconds between two checks for expired sessions.
_REAP_EVERY = 1.0


class SessionManager(SessionContext):
    """All sessions of a server."""

    def __init__(self, workers: WorkerPool, limits: SessionLimits, limiter: RateLimiter | None = None):
        super().__init__(workers, limits, limiter)
        self.by_name: dict[str, EnvSession] = {}
        self.session_class: type[EnvSession] = EnvSession
        self.draining = False
        self.holds: Callable[[str], bool] = lambda owner: True
        """Returns True while a token of an owner is valid; what it opened ends with it."""
        self._reaper: asyncio.Task[None] | None = None

    async def open(self, name: str, owner: str, env_id: str, settings: Mapping[str, Any] | None = None) -> EnvSession:
        """Open a session, or return the owner's session with this name.

        Args:
            name: name of the session, which must be hard to guess.
            settings: "kwargs" (constructor arguments), "wrappers" and "views" (draw after each turn; "board" as data).

        Raises:
            ServerFull: there is no room.
            UnknownEnv: the environment id is unknown.
            EnvBroke: the environment could not be built.
        """
        if name in self.by_name:
            session = self.get(name, owner)
        else:
            if self.draining:
                self.counters.refused += 1
                raise stopping()
            session = self.add(name, owner, env_id, settings)
        try:
            await session.built()
        except BaseException:
            if session.failed_to_build:
                self.close(session)
            raise
        return session

    @contextlib.asynccontextmanager
    async def brief(
        self, owner: str, env_id: str, settings: Mapping[str, Any] | None = None
    ) -> AsyncIterator[EnvSession]:
        """Open a session for the block; see :meth:`open`."""
        session = await self.open(session_name(), owner, env_id, settings)
        try:
            yield session
        finally:
            self.close(session)

    def add(self, name: str, owner: str, env_id: str, settings: Mapping[str, Any] | None = None) -> EnvSession:
        """Add a session. :meth:`EnvSession.built` or the first call builds its environment.

        Raises:
            ServerFull: there is no room.
            UnknownEnv: the environment id is unknown.
        """
        try:
            task, views = self._task(env_id, dict(settings or {}), name)
        except UsageError as error:
            audit("refused", owner, why=str(error))
            raise
        if len(self.by_name) >= self.limits.sessions:
            self.counters.refused += 1
            raise ServerFull(
                f"all {self.limits.sessions} sessions of the server are taken (--sessions)", retry_after=1.0
            )
        most = self.limiter.quota(owner).sessions
        if most and sum(session.owner == owner for session in self.by_name.values()) >= most:
            self.counters.refused += 1
            raise ServerFull(
                f"all {most} sessions of this client are taken (the server's --per-client)", retry_after=1.0
            )
        record = self.records[owner, env_id]
        record.add()
        session = self.by_name[name] = self.session_class(self, name, owner, task, views, record.needs_own_worker)
        audit("open", owner, session=name[:6], env=env_id)
        return session

    def get(self, name: str, owner: str) -> EnvSession:
        """Return a session by name.

        Raises:
            SessionGone: this owner has no such session.
        """
        session = self.by_name.get(name)
        if session is not None and session.owner == owner:
            return session
        raise SessionGone("there is no such session: it was closed, its lease is over, or the server was restarted")

    def close(self, session: EnvSession) -> None:
        """End a session and cancel its running calls."""
        if self.by_name.pop(session.name, None) is not None:
            session.end()
            audit("close", session.owner, session=session.name[:6], env=session.env.task.env_id, calls=session.count)

    def start(self) -> None:
        """Start to end expired sessions."""
        self._reaper = asyncio.get_running_loop().create_task(self._reap())

    async def stop(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reaper
        await self.drain(0)

    async def drain(self, seconds: float) -> None:
        """Accept no new sessions, wait until the open ones have ended, and end the others."""
        self.draining = True
        end = time.monotonic() + seconds
        while self.by_name and time.monotonic() < end:
            await asyncio.sleep(0.05)
        for session in list(self.by_name.values()):
            self.close(session)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _task(self, env_id: str, settings: dict[str, Any], name: str) -> tuple[Task, Views]:
        kwargs, wrappers = settings.pop("kwargs", {}), settings.pop("wrappers", {})
        wanted = settings.pop("views", False)
        views: Views = "board" if wanted == "board" else wanted is True
        if settings:
            raise UsageError(f"unknown setting {next(iter(settings))!r:.40}; there are kwargs, wrappers and views")
        env_spec, task = served(env_id), Task(env_id, 0, kwargs, wrappers)
        if not self.limits.any_arguments:
            _check(env_spec, task.kwargs, task.wrappers)
        if not isinstance(name, str) or not 16 <= len(name) <= 64:
            raise UsageError("the name of a session has 16 to 64 characters")
        return task, views

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(_REAP_EVERY)
            now = time.monotonic()
            for session in list(self.by_name.values()):
                since = now - session.last_call_at
                alone = min(since, now - session.disconnected_at) if session.disconnected_at else 0.0
                idle = not session.busy and (since > self.limits.idle or alone > self.limits.gone)
                if idle or not self.holds(session.owner) or now - session.opened_at > self.limits.total:
                    self.counters.expired += 1
                    self.close(session)


def served(env_id: str) -> EnvSpec:
    """Return the spec registered under an id, but not of another server, folder or package of this host.

    Raises:
        UnknownEnv: the id is unknown.
    """
    wrong = not isinstance(env_id, str) or "://" in env_id or len(env_id) > 200  # suggestions for long ones take time
    if wrong or is_elsewhere(env_id):
        raise UsageError(f"{env_id!r:.80} is not an id of an environment of this server")
    return spec(env_id)
