"""Sessions: environments in worker processes, by name, with leases; they can go on in another server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from rollenv.core import RollenvError, UsageError
from rollenv.env_spec import EnvSpec
from rollenv.needs import extra
from rollenv.registry import is_elsewhere, spec
from rollenv.remote import protocol
from rollenv.remote.protocol import ServerFull, SessionGone, session_name
from rollenv.remote.replay_log import ReplayLog
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import Views
from rollenv.rollout.workers.pool import WorkerPool
from rollenv.serve.logs import audit
from rollenv.serve.quotas import RateLimiter, SessionContext, SessionLimits
from rollenv.serve.session import Session

with extra("serve", "Handing over sessions"):
    import httpx


#: Arguments whose texts choose among what an environment has built in.
_CHOICES = (
    "action_format", "answer_key", "goals", "metric", "observation", "operators", "render_mode", "rewards", "rules",
    "separator", "size", "split", "variant",
)  # fmt: skip

#: Wrappers that only change what is seen. All others could run programs, load files or ask servers; a name of the form
#: "module:function" would import any module.
_WRAPPERS = frozenset(["concat", "concat_with_action", "episode_tracking"])


def _check(env_spec: EnvSpec, kwargs: Mapping[str, Any], wrappers: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse arguments that could make the server read, run or ask something: files, programs, servers, data sets."""
    for name, value in kwargs.items():
        if not _plain(value, texts=name in _CHOICES) and value != env_spec.kwargs.get(name):
            raise UsageError(
                f"{env_spec.id}: this server takes no {name}={value!r:.60} from clients: only numbers, and texts that "
                "choose among built-in variants; whoever runs it can allow others with --any-arguments"
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


logger = logging.getLogger(__name__)

#: Seconds between two looks for sessions whose lease is over.
_REAP_EVERY = 1.0


class SessionManager(SessionContext):
    """All sessions of a server."""

    def __init__(self, workers: WorkerPool, limits: SessionLimits, limiter: RateLimiter | None = None):
        super().__init__(workers, limits, limiter)
        self.by_name: dict[str, Session] = {}
        self.session_class: type[Session] = Session
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
        if name in self.by_name:
            found = self.get(name, owner)
        else:
            if self.draining:
                self.counters.refused += 1
                raise ServerFull("the server is about to stop", retry_after=5.0, draining=True)
            found = self.add(name, owner, env_id, settings)
        found.lasting = found.lasting or lasting
        try:
            await found.built()
        except BaseException:
            if found.failed_to_build:
                self.close(found)
            raise
        return found

    @contextlib.asynccontextmanager
    async def brief(self, owner: str, env_id: str, settings: Mapping[str, Any] | None = None) -> AsyncIterator[Session]:
        """A session that ends with the block; see :meth:`open`."""
        session = await self.open(session_name(), owner, env_id, settings)
        try:
            yield session
        finally:
            self.close(session)

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
        if len(self.by_name) >= self.limits.sessions:
            self.counters.refused += 1
            raise ServerFull(f"all {self.limits.sessions} sessions are taken", retry_after=1.0)
        most = self.limiter.quota(owner).sessions
        if most and sum(session.owner == owner for session in self.by_name.values()) >= most:
            self.counters.refused += 1
            raise ServerFull(f"all {most} sessions of this client are taken", retry_after=1.0)
        record = self.records[owner, env_id]
        record.add()
        found = self.by_name[name] = self.session_class(self, name, owner, task, views, record.needs_own_worker)
        audit("open", owner, session=name[:6], env=env_id)
        return found

    def get(self, name: str, owner: str) -> Session:
        """A session by its name.

        Raises:
            SessionGone: there is none of this owner.
        """
        found = self.by_name.get(name)
        if found is not None and found.owner == owner:
            return found
        raise SessionGone("there is no such session: it was closed, its lease is over, or the server was restarted")

    def close(self, session: Session) -> None:
        """End a session; a call that runs is given up."""
        if self.by_name.pop(session.name, None) is not None:
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
        for session in list(self.by_name.values()):
            self.close(session)

    async def drain(self, seconds: float) -> None:
        """Take no new sessions, and wait until the others have ended."""
        self.draining = True
        end = time.monotonic() + seconds
        while self.by_name and time.monotonic() < end:
            await asyncio.sleep(0.05)

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
                since = now - session.used
                idle = since > self.limits.idle or (session.left and min(since, now - session.left) > self.limits.gone)
                if (idle and not session.busy) or now - session.opened > self.limits.total:
                    self.counters.expired += 1
                    self.close(session)


def served(env_id: str) -> EnvSpec:
    """Return the spec registered under an id; never another server's, or one of a folder or package of this host.

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


#: Where a server takes sessions.
IMPORT_PATH = "/sessions"

#: Sessions that are sent to another server at the same time, and seconds for all that have stopped in time.
_AT_ONCE, _SECONDS = 16, 30.0


def is_url(place: str) -> bool:
    """Return whether sessions go to another server, and not into a file."""
    return place.startswith(("http://", "https://"))


async def export_sessions(sessions: SessionManager, place: str, seconds: float) -> int:
    """Have sessions go on elsewhere. They take no more calls here; those that are too busy stay.

    Args:
        sessions: of which those that outlast a connection are handed over.
        place: a file, or the URL of a server; the variable ``ROLLENV_TOKEN`` holds its token for ``admin``.
        seconds: for calls that run to end.

    Returns:
        How many sessions were handed over.
    """
    sessions.draining = True
    file = None if is_url(place) else Path(place)
    token = os.environ.get("ROLLENV_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    room, told, end = asyncio.Semaphore(_AT_ONCE), list[bytes](), asyncio.get_running_loop().time() + seconds
    async with httpx.AsyncClient(headers=headers, timeout=_SECONDS) as client:

        async def hand(session: Session) -> bool:
            try:
                async with asyncio.timeout_at(end):
                    data = protocol.pack_request(await session.export())
                if file is None:
                    async with asyncio.timeout_at(end + _SECONDS), room:
                        (await client.post(place.rstrip("/") + IMPORT_PATH, content=data)).raise_for_status()
                told.append(data)
            except (RollenvError, TimeoutError, httpx.HTTPError) as error:
                logger.warning("session %.6s was not handed over: %s", session.name, str(error) or "it is busy")
                return False
            return True

        handed = await asyncio.gather(*map(hand, [session for session in sessions.by_name.values() if session.lasting]))
    if file is not None and told:
        _write(file, told)
    return sum(handed)


def import_file(sessions: SessionManager, file: Path) -> int:
    """Go on with the sessions in a file, which is removed: a session must not go on twice.

    Args:
        file: written by :func:`export_sessions`; it need not be there.

    Returns:
        How many sessions go on.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        data = _read(file)
        if data is None:
            return 0
        exported = protocol.unpack(data)
        if not isinstance(exported, list):
            raise UsageError(f"{file} holds no sessions")
        file.unlink()
    except OSError as error:
        raise UsageError(f"the sessions in {file} cannot be taken up: {error}") from error
    taken = 0
    for session in exported:
        try:
            import_session(sessions, session)
            taken += 1
        except Exception as error:  # the others go on
            logger.warning("a session cannot go on: %s", error)
    return taken


def import_session(sessions: SessionManager, told: Any) -> None:
    """Go on with a session.

    Args:
        told: by :meth:`Session.export`.

    Raises:
        UsageError: it is no session, or there is one of its name.
        ServerFull: there is no room.
        UnknownEnv: there is no such environment.
    """
    if not isinstance(told, dict) or {name: type(told.get(name)) for name in _KINDS} != _KINDS:
        raise UsageError("this is no session of another server")
    if told["name"] in sessions.by_name:
        raise UsageError("there is such a session already")
    history = ReplayLog([_call(call) for call in told["calls"]])
    session = sessions.add(told["name"], told["owner"], told["env_id"], told["settings"])
    session.restore(told, history)


#: What is told of a session.
_KINDS: Mapping[str, type] = {
    "name": str, "owner": str, "env_id": str, "settings": dict, "about": dict, "count": int, "over": bool,
    "calls": list, "last": list, "last_step": list, "turns": int, "via": str,
}  # fmt: skip


def _call(call: Any) -> tuple[str, list[Any], int]:
    match call:
        case [str(method), list(args), int(fingerprint)] if method in protocol.METHODS:
            return method, args, fingerprint
    raise UsageError("this is no session of another server")


def _read(file: Path) -> bytes | None:
    """Return what this user wrote into the file; None if it is not there.

    Raises:
        OSError: it cannot be read, or is another user's, who could have made up sessions, or is no file at all.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as opened:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise PermissionError("it is not a file of the user who runs this server")
        return opened.read()


def _write(file: Path, told: list[bytes]) -> None:
    """For this user alone: who knows a session's name may play it. All of it or nothing."""
    new = file.with_name(f".{file.name}.{os.getpid()}-{time.time_ns()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
            written.write(protocol.pack_list(told))
        new.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        logger.error("the sessions cannot be written to %s: %s", file, error)
