"""Export of sessions to another server, through a file or a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, InstanceOf, ValidationError

from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.needs import extra
from rollenv.remote import protocol
from rollenv.remote.replay_log import ReplayLog
from rollenv.serve.responses import wrong_fields
from rollenv.serve.session import Session
from rollenv.serve.sessions import SessionManager

with extra("serve", "Handing over sessions"):
    import httpx

logger = logging.getLogger(__name__)

#: The path at which a server imports sessions.
IMPORT_PATH = "/sessions"

#: Concurrent requests to another server, and seconds to send sessions after the deadline for stopping them.
_AT_ONCE, _SECONDS = 16, 30.0


def _known(method: str) -> str:
    if method not in protocol.METHODS:
        raise ValueError(f"there is no method {method!r:.40}")
    return method


class ExportedSession(BaseModel):
    """A session on its way to another server."""

    model_config = ConfigDict(strict=True)
    name: InstanceOf[str]  # chosen by clients; pydantic's str would reject lone surrogates
    owner: str
    env_id: str
    settings: dict[str, Any]
    about: dict[str, Any]
    count: int
    over: bool
    calls: list[Annotated[tuple[Annotated[str, AfterValidator(_known)], list[Any], int], Field(strict=False)]]
    last: list[Any]
    """The outcome of the last call; see :meth:`Session.position`."""
    last_step: list[Any]
    turns: int
    via: str


async def export_session(session: Session) -> ExportedSession:
    """Suspend a session and return its data for another server. Cancelling this resumes the session.

    Raises:
        SessionGone: the environment could not be built.
    """
    await session.suspend()
    env = session.env
    try:
        await env.save_state()
    except BaseException:
        session.resume()
        raise
    count, last = session.position()
    return ExportedSession(
        name=session.name,
        owner=session.owner,
        env_id=env.task.env_id,
        settings={"kwargs": env.task.kwargs, "wrappers": env.task.wrappers, "views": env.views},
        about=env.about,
        count=count,
        over=env.over,
        calls=[(method, list(args), fingerprint) for method, args, fingerprint in env.history.calls],
        last=last,
        last_step=env.last_step,
        turns=env.turns,
        via=session.protocol,
    )


def import_session(sessions: SessionManager, data: Any) -> None:
    """Import a session.

    Raises:
        UsageError: the data is malformed, or a session with this name exists.
        ServerFull: there is no room.
        UnknownEnv: the environment id is unknown.
    """
    try:
        exported = ExportedSession.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"this is not an exported session: {wrong_fields(error):.500}") from error
    if exported.name in sessions.by_name:
        raise UsageError("a session with this name already exists")
    session = sessions.add(exported.name, exported.owner, exported.env_id, exported.settings)
    session.protocol = exported.via
    session.restore(exported.count, exported.last)
    env = session.env
    env.about, env.over, env.last_step, env.turns = exported.about, exported.over, exported.last_step, exported.turns
    env.history = ReplayLog([*exported.calls])


def is_url(target: str) -> bool:
    """Return whether the target of an export is a server, not a file."""
    return target.startswith(("http://", "https://"))


async def export_sessions(sessions: SessionManager, target: str, seconds: float) -> int:
    """Export the sessions that outlast a connection. They accept no more calls here; those that are too busy stay.

    Args:
        target: a file, or the URL of a server; the variable ``ROLLENV_TOKEN`` holds its token for ``admin``.

    Returns:
        The number of exported sessions.
    """
    sessions.draining = True
    file = None if is_url(target) else Path(target)
    token = os.environ.get("ROLLENV_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    room, exported, end = asyncio.Semaphore(_AT_ONCE), list[bytes](), asyncio.get_running_loop().time() + seconds
    async with httpx.AsyncClient(headers=headers, timeout=_SECONDS) as client:

        async def hand_over(session: Session) -> None:
            try:
                async with asyncio.timeout_at(end):
                    data = protocol.pack_request(dict(await export_session(session)))
                if file is None:
                    async with asyncio.timeout_at(end + _SECONDS), room:
                        (await client.post(target.rstrip("/") + IMPORT_PATH, content=data)).raise_for_status()
                exported.append(data)
            except (RollenvError, TimeoutError, httpx.HTTPError) as error:
                logger.warning("session %.6s was not handed over: %s", session.name, str(error) or "it is busy")

        await asyncio.gather(*(hand_over(session) for session in sessions.by_name.values() if session.lasting))
    if file is not None and exported:
        _write(file, exported)
    return len(exported)


def import_file(sessions: SessionManager, file: Path) -> int:
    """Import the sessions in a file and remove it, so that no session continues twice.

    Args:
        file: a file of :func:`export_sessions`; it may be absent.

    Returns:
        The number of imported sessions.

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
        raise UsageError(f"the sessions in {file} cannot be imported: {error}") from error
    imported = 0
    for session in exported:
        try:
            import_session(sessions, session)
            imported += 1
        except Exception as error:  # continue with the others
            logger.warning("a session cannot be imported: %s", error)
    return imported


def _read(file: Path) -> bytes | None:
    """Read a file that belongs to this user; return None if it is absent.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is another user's, who may have forged sessions.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as opened:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise PermissionError("it is not a regular file of the user who runs this server")
        return opened.read()


def _write(file: Path, exported: list[bytes]) -> None:
    """Write the file atomically and readable by this user only: a session's name is its password."""
    new = file.with_name(f".{file.name}.{os.getpid()}-{time.time_ns()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
            written.write(protocol.pack_list(exported))
        new.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        logger.error("the sessions cannot be written to %s: %s", file, error)
