"""Sessions that go on elsewhere: in the next server on this machine, through a file, or in another one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollenv.core import RollenvError, UsageError
from rollenv.needs import extra
from rollenv.remote import protocol
from rollenv.remote.replay_log import ReplayLog
from rollenv.serve.session import Session
from rollenv.serve.sessions import SessionManager

with extra("serve", "Handing over sessions"):
    import httpx

logger = logging.getLogger(__name__)

#: Where a server takes sessions.
PATH = "/sessions"

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
                        (await client.post(place.rstrip("/") + PATH, content=data)).raise_for_status()
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
