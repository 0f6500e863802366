"""Live sessions, which administrators watch turn by turn."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from typing import Any

from pydantic import BaseModel, Field

from rollenv.core.errors import UsageError
from rollenv.remote.protocol import SessionGone
from rollenv.report.plain import clip, plain
from rollenv.serve.auth import Client
from rollenv.serve.protocols.page.episodes import ACTIONS, BYTES, Nothing, turn_of
from rollenv.serve.replayed_env import ReplayedEnv
from rollenv.serve.session import EnvSession
from rollenv.serve.sessions import SessionManager

logger = logging.getLogger(__name__)

#: Maximum characters of the stored turns of a watched session.
_BYTES = 2_000_000

#: Maximum stored turns of a watched session, maximum watched sessions, and seconds without a request until one is
#: dropped.
_TURNS, _WATCHED, _PATIENCE = 100, 64, 60.0

#: Maximum seconds that a request waits for new turns.
_WAIT = 10.0


class OfKey(BaseModel):
    """A request about any client's session, by its :func:`key_of`."""

    key: str = Field(max_length=1000)


class Watch(OfKey):
    """A request for the turns of a session."""

    after: int = -1
    """Number of a turn; -1 requests all stored turns without waiting."""


class _Watched:
    """The last turns of a watched session."""

    def __init__(self) -> None:
        self.last_read = time.monotonic()
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
    """Live sessions of all protocols, without their secret names."""

    def __init__(self, sessions: SessionManager):
        self._sessions = sessions
        self._watched: dict[ReplayedEnv, _Watched] = {}

    async def table(self, client: Client, params: Nothing) -> Any:
        """Return a row for each session."""
        now = time.monotonic()
        return {"sessions": [_row(session, now) for session in self._sessions.by_name.values()]}

    async def watch(self, client: Client, params: Watch) -> Any:
        """Return the turns of a session after a given one; wait for a while if there are none."""
        session, after = self._session(params), params.after
        now = time.monotonic()
        envs = {each.env for each in self._sessions.by_name.values()}
        for env, other in list(self._watched.items()):
            if now - other.last_read > _PATIENCE or env not in envs:
                del self._watched[env]
        if session.env not in self._watched:
            if len(self._watched) >= _WATCHED:
                raise UsageError(f"{_WATCHED} sessions are watched already")
            self._watched[session.env] = _Watched()
            self._sessions.on_call = self._on_call  # only now, so that steps cost nothing more before
        watched = self._watched[session.env]
        if after < 0:
            return self._turns(session, watched, 0)
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
        watched.last_read = time.monotonic()
        return self._turns(session, watched, after)

    async def link(self, client: Client, params: OfKey) -> Any:
        """Return a link that replays the episode of a session, or the reason ``problem`` why there is none."""
        session = self._session(params)
        task = session.env.task
        (method, args, _), *rest = session.env.history.calls or [("", [], 0)]
        if method != "reset" or args[0] is None or any(m in ("reset", "set_state", "seed_stream") for m, *_ in rest):
            return {"problem": "it did not begin with a seed"}
        if task.wrappers:
            return {"problem": "it has wrappers"}
        actions = [step[0] for m, step, _ in rest if m == "step"]
        if len(actions) > ACTIONS or sum(len(action.encode("utf-8", "replace")) for action in actions) > BYTES:
            return {"problem": f"it is too long: {len(actions)} actions"}
        return {
            "env": task.env_id,
            "seed": str(args[0]),
            "options": plain(args[1]),
            "actions": actions,
            "kwargs": plain(dict(task.kwargs)),
        }

    # -- inside --------------------------------------------------------------------------------------------------------

    def _session(self, params: OfKey) -> EnvSession:
        session = next((s for s in self._sessions.by_name.values() if key_of(s) == params.key), None)
        if session is None:
            raise SessionGone("the session has ended")
        return session

    def _lasts(self, session: EnvSession) -> bool:
        return self._sessions.by_name.get(session.name) is session

    def _on_call(self, env: ReplayedEnv, method: str, args: list[Any], answer: Any) -> None:
        if env not in self._watched or method not in ("reset", "step", "set_state"):
            return
        if time.monotonic() - self._watched[env].last_read > _PATIENCE:
            del self._watched[env]
            return
        try:
            turn = {"note": "the client restored a state"} if method == "set_state" else turn_of(method, args, answer)
        except Exception:  # watching must not make the player's call fail
            logger.exception("a turn of %s cannot be shown", env.task.env_id)
            turn = {"note": "a turn cannot be shown"}
        self._watched[env].add(turn | {"turn": env.turns})

    def _turns(self, session: EnvSession, watched: _Watched, after: int) -> dict[str, Any]:
        env = session.env
        answer = {
            "count": watched.count,
            "turns": [turn for number, turn in watched.turns if number > after],
            "session": _row(session, time.monotonic()),
            "closed": not self._lasts(session),
        }
        if not watched.count and env.last_step:
            action = next((args[0] for method, args, _ in reversed(env.history.calls) if method == "step"), "")
            answer["before"] = turn_of("step", [action], env.last_step) | {"turn": env.turns}
        return answer


def _size(turn: dict[str, Any]) -> int:
    lists = [*turn.get("choices", ()), *turn.get("images", ())]
    return sum(len(value) for value in turn.values() if isinstance(value, str)) + sum(map(len, lists))


def key_of(session: EnvSession) -> str:
    """Return a public key of a session, with which nobody can use it."""
    return hashlib.sha256(session.name.encode("utf-8", "replace")).hexdigest()[:16]


def _row(session: EnvSession, now: float) -> dict[str, Any]:
    last = session.env.last_step
    return {
        "key": key_of(session),
        "env": session.env.task.env_id,
        "owner": clip(session.owner),
        "protocol": session.protocol,
        "age": now - session.opened_at,
        "idle": 0.0 if session.busy else now - session.last_call_at,
        "turns": session.env.turns,
        "reward": last[1] if last else None,
        "state": _state(session),
    }


def _state(session: EnvSession) -> str:
    if session.busy:
        return "busy"
    if not session.env.over:
        return "playing"
    return "over" if session.env.turns else "new"
