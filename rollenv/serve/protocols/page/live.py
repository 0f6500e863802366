"""Sessions as they run: a table of all of them, and one of them turn by turn."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from typing import Any

from rollenv.core import UsageError
from rollenv.remote.protocol import SessionGone
from rollenv.report.plain import clip, plain
from rollenv.serve.protocols.page.episodes import ACTIONS, BYTES, PageRequest, turn_of
from rollenv.serve.session import Session
from rollenv.serve.sessions import SessionManager

logger = logging.getLogger(__name__)

#: Characters of the turns that are kept of a watched session.
_BYTES = 2_000_000

#: Turns that are kept of a watched session, sessions that are watched, and seconds after which nobody watches any more.
_TURNS, _WATCHED, _PATIENCE = 100, 64, 60.0

#: Seconds that a question for new turns waits.
_WAIT = 10.0

#: Faces by the first part of their paths.
_FACES = {"native": "rollenv", "apis": "gem", "openenv": "openenv", "mcp": "mcp", "page": "page", "readyz": "canary"}


class _Watched:
    """The last turns of a session that somebody watches."""

    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.turns: deque[tuple[int, dict[str, Any]]] = deque()
        self.count = self._size = 0
        self.news = asyncio.Event()

    def add(self, turn: dict[str, Any]) -> None:
        self.count += 1
        self.turns.append((self.count, turn))
        self._size += _size(turn)
        while len(self.turns) > _TURNS or (self._size > _BYTES and len(self.turns) > 1):
            self._size -= _size(self.turns.popleft()[1])
        self.news.set()


class Live:
    """Live sessions, whichever protocol opened them, without their secret names."""

    def __init__(self, sessions: SessionManager):
        self._sessions = sessions
        self._watched: dict[Session, _Watched] = {}
        sessions.on_call = self._seen

    async def table(self, asked: PageRequest) -> Any:
        """A row for each session."""
        now = time.monotonic()
        return {"sessions": [_row(session, now) for session in self._sessions.by_name.values()]}

    async def watch(self, asked: PageRequest) -> Any:
        """The turns of session ``key`` since number ``after``; waits a while if there are none."""
        session, after = self._session(asked), asked.body.get("after", -1)
        if not isinstance(after, int):
            raise UsageError("'after' is a number")
        self._forget()
        if session not in self._watched:
            if len(self._watched) >= _WATCHED:
                raise UsageError(f"{_WATCHED} sessions are watched already")
            self._watched[session] = _Watched()
        watched = self._watched[session]
        if after < 0:
            return self._told(session, watched, 0)
        end = time.monotonic() + _WAIT
        while (
            watched.count <= after and time.monotonic() < end and self._lasts(session) and not self._sessions.draining
        ):
            watched.news.clear()
            try:
                async with asyncio.timeout(1):
                    await watched.news.wait()
            except TimeoutError:
                pass
        watched.asked = time.monotonic()
        return self._told(session, watched, after)

    async def link(self, asked: PageRequest) -> Any:
        """Return a link that replays the episode of session ``key``, or ``problem``: why there is none."""
        session = self._session(asked)
        (method, args, _), *rest = session.history.calls or [("", [], 0)]
        if method != "reset" or args[0] is None or any(m in ("reset", "set_state", "seed_stream") for m, *_ in rest):
            return {"problem": "it did not begin with a seed"}
        if session.task.wrappers:
            return {"problem": "it has wrappers"}
        actions = [step[0] for m, step, _ in rest if m == "step"]
        if len(actions) > ACTIONS or sum(len(action.encode("utf-8", "replace")) for action in actions) > BYTES:
            return {"problem": f"it is too long: {len(actions)} actions"}
        told = {"env": session.task.env_id, "seed": str(args[0]), "options": plain(args[1]), "actions": actions}
        return told | {"kwargs": plain(dict(session.task.kwargs))}

    # -- inside --------------------------------------------------------------------------------------------------------

    def _session(self, asked: PageRequest) -> Session:
        key = asked.text("key")
        found = next((s for s in self._sessions.by_name.values() if key_of(s) == key), None)
        if found is None:
            raise SessionGone("the session has ended")
        return found

    def _lasts(self, session: Session) -> bool:
        return self._sessions.by_name.get(session.name) is session

    def _forget(self) -> None:
        now = time.monotonic()
        for session, watched in list(self._watched.items()):
            if now - watched.asked > _PATIENCE or not self._lasts(session):
                del self._watched[session]

    def _seen(self, session: Session, method: str, args: list[Any], answer: Any) -> None:
        if not self._watched or session not in self._watched or method not in ("reset", "step", "set_state"):
            return
        if time.monotonic() - self._watched[session].asked > _PATIENCE:
            del self._watched[session]
            return
        try:
            turn = {"note": "the client restored a state"} if method == "set_state" else turn_of(method, args, answer)
        except Exception:  # whoever plays does not suffer for who watches
            logger.exception("a turn of %s cannot be shown", session.task.env_id)
            turn = {"note": "a turn cannot be shown"}
        self._watched[session].add(turn | {"turn": session.turns})

    def _told(self, session: Session, watched: _Watched, after: int) -> dict[str, Any]:
        told = {"count": watched.count, "turns": [turn for number, turn in watched.turns if number > after]}
        if not watched.count and session.last_step:
            action = next((args[0] for method, args, _ in reversed(session.history.calls) if method == "step"), "")
            told["before"] = turn_of("step", [action], session.last_step) | {"turn": session.turns}
        return told | {"session": _row(session, time.monotonic()), "closed": not self._lasts(session)}


def _size(turn: dict[str, Any]) -> int:
    """Characters of a turn."""
    return sum(len(value) for value in turn.values() if isinstance(value, str)) + sum(map(len, turn.get("choices", ())))


def key_of(session: Session) -> str:
    """Return a key that names a session to others than its owner, and lets nobody use it."""
    return hashlib.sha256(session.name.encode("utf-8", "replace")).hexdigest()[:16]


def _row(session: Session, now: float) -> dict[str, Any]:
    last = session.last_step
    return {
        "key": key_of(session),
        "env": session.task.env_id,
        "owner": clip(session.owner),
        "face": _FACES.get(session.via.split("/")[1] if "/" in session.via else "", "ors" if session.via else ""),
        "age": now - session.opened,
        "idle": 0.0 if session.busy else now - session.used,
        "turns": session.turns,
        "reward": last[1] if last else None,
        "state": _state(session),
    }


def _state(session: Session) -> str:
    if session.busy:
        return "busy"
    if not session.over:
        return "playing"
    return "over" if session.turns else "new"
