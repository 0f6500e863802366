"""The page at ``/``: people look at environments, play them, watch sessions, and see how the server is.

Static files and a JSON API below ``/page/api``. Its sessions are those of every other protocol, with the same tokens,
limits and leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import numpy as np
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from rollenv import __version__, drawing
from rollenv.core import RollenvError, UsageError
from rollenv.remote.protocol import NotAllowed, SessionGone, error_answer
from rollenv.report.plain import clip, plain
from rollenv.serve.auth import Client
from rollenv.serve.protocols.page import episodes
from rollenv.serve.protocols.page.episodes import ACTIONS, BYTES, Catalogue, Episodes, Nothing, turn_of
from rollenv.serve.replayed_env import ReplayedEnv
from rollenv.serve.responses import Json, body_of, retry_after, status_of, validated
from rollenv.serve.server import EnvServer
from rollenv.serve.session import Session
from rollenv.serve.sessions import SessionManager

logger = logging.getLogger(__name__)

#: Characters of the turns that are kept of a watched session.
_BYTES = 2_000_000

#: Turns that are kept of a watched session, sessions that are watched, and seconds after which nobody watches any more.
_TURNS, _WATCHED, _PATIENCE = 100, 64, 60.0

#: Seconds that a question for new turns waits.
_WAIT = 10.0

#: Protocols by the first part of their paths.
_PROTOCOLS = {
    "native": "rollenv",
    "apis": "gem",
    "openenv": "openenv",
    "mcp": "mcp",
    "page": "page",
    "readyz": "canary",
}


class _OfKey(BaseModel):
    """A request about anybody's session, by its :func:`key_of`."""

    key: str = Field(max_length=1000)


class _Watch(_OfKey):
    after: int = -1
    """The number of a turn; -1 asks for all that are kept, without waiting."""


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
        self._watched: dict[ReplayedEnv, _Watched] = {}
        sessions.on_call = self._on_call

    async def table(self, client: Client, asked: Nothing) -> Any:
        """A row for each session."""
        now = time.monotonic()
        return {"sessions": [_row(session, now) for session in self._sessions.by_name.values()]}

    async def watch(self, client: Client, asked: _Watch) -> Any:
        """The turns of a session since one of them; waits a while if there are none."""
        session, after = self._session(asked), asked.after
        self._forget()
        if session.env not in self._watched:
            if len(self._watched) >= _WATCHED:
                raise UsageError(f"{_WATCHED} sessions are watched already")
            self._watched[session.env] = _Watched()
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
        watched.asked = time.monotonic()
        return self._turns(session, watched, after)

    async def link(self, client: Client, asked: _OfKey) -> Any:
        """Return a link that replays the episode of a session, or ``problem``: why there is none."""
        session = self._session(asked)
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

    def _session(self, asked: _OfKey) -> Session:
        found = next((s for s in self._sessions.by_name.values() if key_of(s) == asked.key), None)
        if found is None:
            raise SessionGone("the session has ended")
        return found

    def _lasts(self, session: Session) -> bool:
        return self._sessions.by_name.get(session.name) is session

    def _forget(self) -> None:
        now = time.monotonic()
        envs = {session.env for session in self._sessions.by_name.values()}
        for env, watched in list(self._watched.items()):
            if now - watched.asked > _PATIENCE or env not in envs:
                del self._watched[env]

    def _on_call(self, env: ReplayedEnv, method: str, args: list[Any], answer: Any) -> None:
        if not self._watched or env not in self._watched or method not in ("reset", "step", "set_state"):
            return
        if time.monotonic() - self._watched[env].asked > _PATIENCE:
            del self._watched[env]
            return
        try:
            turn = {"note": "the client restored a state"} if method == "set_state" else turn_of(method, args, answer)
        except Exception:  # whoever plays does not suffer for who watches
            logger.exception("a turn of %s cannot be shown", env.task.env_id)
            turn = {"note": "a turn cannot be shown"}
        self._watched[env].add(turn | {"turn": env.turns})

    def _turns(self, session: Session, watched: _Watched, after: int) -> dict[str, Any]:
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
    return sum(len(value) for value in turn.values() if isinstance(value, str)) + sum(map(len, turn.get("choices", ())))


def key_of(session: Session) -> str:
    """Return a key that names a session to others than its owner, and lets nobody use it."""
    return hashlib.sha256(session.name.encode("utf-8", "replace")).hexdigest()[:16]


def _row(session: Session, now: float) -> dict[str, Any]:
    last = session.env.last_step
    return {
        "key": key_of(session),
        "env": session.env.task.env_id,
        "owner": clip(session.owner),
        "face": _PROTOCOLS.get(session.via.split("/")[1] if "/" in session.via else "", "ors" if session.via else ""),
        "age": now - session.opened,
        "idle": 0.0 if session.busy else now - session.used,
        "turns": session.env.turns,
        "reward": last[1] if last else None,
        "state": _state(session),
    }


def _state(session: Session) -> str:
    if session.busy:
        return "busy"
    if not session.env.over:
        return "playing"
    return "over" if session.env.turns else "new"


#: Only files and answers of this server are used, and no other site can frame the page or look into it.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}

#: Files that the report of a run has, too: (name there, what it imports, what it exports).
_SHARED = {
    "base.css": ("style.css", "", ""),
    "base.js": ("base.js", "", "export {el, svgNode, short, plural, visible, pre, icon};\n"),
    "picture.js": (
        "picture.js",
        'import {el, svgNode, visible, pre} from "./base.js";\n',
        "export {picture};\n",
    ),
}


@dataclass(frozen=True)
class _File:
    body: bytes
    packed: bytes
    tag: str
    kind: str

    @classmethod
    def of(cls, name: str, text: str) -> _File:
        body = text.encode()
        kind = _TYPES[name.rpartition(".")[2]] + "; charset=utf-8"
        return cls(body, gzip.compress(body, mtime=0), f'"{hashlib.sha256(body).hexdigest()[:32]}"', kind)


class Files:
    """All of them, read once."""

    def __init__(self) -> None:
        own, shared = resources.files(__package__) / "files", resources.files("rollenv.report") / "page"
        texts = {each.name: each.read_text(encoding="utf-8") for each in own.iterdir() if each.is_file()}
        for name, (source, head, tail) in _SHARED.items():
            texts[name] = head + (shared / source).read_text(encoding="utf-8") + tail
        self._files = {name: _File.of(name, text) for name, text in texts.items()}

    async def index(self, request: Request) -> Response:
        return self._sent("index.html", request)

    async def file(self, request: Request) -> Response:
        return self._sent(request.path_params["name"], request)

    def _sent(self, name: str, request: Request) -> Response:
        file = self._files.get(name)
        if file is None:
            return PlainTextResponse("there is no such file\n", 404, HEADERS)
        headers = HEADERS | {"ETag": file.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=file.kind)
        return Response(file.body, headers=headers, media_type=file.kind)


#: Seconds between two samples, samples that are kept, and times of calls between two samples that count.
_EVERY, _KEPT, _TIMES = 5.0, 120, 2000

#: Kinds of failures of environments.
_FAILURES = ("raised", "wrong", "hung", "lost", "differs")

_NAMES = ("time", "sessions", "calls", "failures", "p50", "p99", "sandboxes")


class MetricsHistory:
    """Ten minutes of a server."""

    def __init__(self, server: EnvServer):
        self._server = server
        self._rows: deque[tuple[float | None, ...]] = deque(maxlen=_KEPT)
        self._times: deque[float] = deque(maxlen=_TIMES)
        self._calls = self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self._timed, server.sessions.on_call_time = server.sessions.on_call_time, self._note
        server.opening.append(self._start)
        server.closing.append(self._stop)

    def columns(self) -> dict[str, Any]:
        """The samples: ``every`` so many seconds, a list for each number, the last ones last.

        Sessions and sandboxes are counts; calls and failures happen so often a second; times are in seconds, and None
        where nothing was called.
        """
        columns = dict(zip(_NAMES, zip(*self._rows, strict=True), strict=True)) if self._rows else {}
        return {"every": _EVERY} | {name: list(columns.get(name, ())) for name in _NAMES}

    def readiness(self) -> dict[str, Any]:
        """Return what the last checks found, by name."""
        return {name: plain(asdict(check)) for name, check in self._server.readiness.checks.items()}

    def _note(self, method: str, seconds: float) -> None:
        self._timed(method, seconds)
        self._times.append(seconds)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            self.take()

    def take(self) -> None:
        sessions = self._server.sessions
        calls = sessions.counters.calls
        failures = sum(record.counts[kind] for record in sessions.health.envs.values() for kind in _FAILURES)
        times, self._times = self._times, deque(maxlen=_TIMES)
        p50, p99 = np.quantile(times, (0.5, 0.99)).tolist() if times else (None, None)
        rates = ((calls - self._calls) / _EVERY, (failures - self._failures) / _EVERY)
        self._calls, self._failures = calls, failures
        self._rows.append((time.time(), len(sessions.by_name), *rates, p50, p99, len(self._server.sandboxes.by_name)))


#: Answers a client's request.
_Handler = Callable[[Client, Any], Awaitable[Any]]

#: Values of Sec-Fetch-Site that browsers send for a page's own requests; other clients send none.
_OWN = ("", "same-origin", "none")

#: Bytes of an answer that are worth compressing.
_LARGE = 4096

_NOT_KEPT = {"Cache-Control": "no-store"}


def routes(server: EnvServer) -> list[BaseRoute]:
    """The page's files, and what they ask for."""
    files, samples = Files(), MetricsHistory(server)
    catalogue = Catalogue(server.sessions)
    plays, live = Episodes(server.sessions, catalogue), Live(server.sessions)

    async def me(client: Client, asked: Nothing) -> Any:
        return {
            "client": client.name,
            "scopes": sorted(client.scopes),
            "tokens": bool(server.tokens),
            "version": __version__,
            "grounds": drawing.grounds(),
            "pieces": drawing.shapes(),
        }

    async def health(client: Client, asked: Nothing) -> Any:
        return plain(server.health()) | {"canaries": samples.readiness(), "samples": samples.columns()}

    async def check(client: Client, asked: Nothing) -> Any:
        await server.readiness.problems()
        return samples.readiness()

    handlers: dict[str, tuple[str | None, type[BaseModel], _Handler]] = {
        "me": (None, Nothing, me),
        "catalogue": ("environments", Nothing, catalogue.rows),
        "card": ("environments", episodes.CardRequest, catalogue.card),
        "open": ("environments", episodes.Open, plays.open),
        "reset": ("environments", episodes.Reset, plays.reset),
        "step": ("environments", episodes.Act, plays.step),
        "suggest": ("environments", episodes.Suggest, plays.suggest),
        "end": ("environments", episodes.OfSession, plays.end),
        "replay": ("environments", episodes.Replay, plays.replay),
        "sessions": ("admin", Nothing, live.table),
        "watch": ("admin", _Watch, live.watch),
        "link": ("admin", _OfKey, live.link),
        "health": ("admin", Nothing, health),
        "check": ("admin", Nothing, check),
    }
    found: list[BaseRoute] = [Route("/", files.index), Route("/page/{name}", files.file)]
    return found + [
        Route(f"/page/api/{name}", _answers(server, *how), methods=["POST"]) for name, how in handlers.items()
    ]


def _answers(
    server: EnvServer, scope: str | None, model: type[BaseModel], handler: _Handler
) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request) -> Response:
        headers = dict(HEADERS)
        try:
            if request.headers.get("sec-fetch-site", "") not in _OWN:
                raise NotAllowed("pages of other sites may not use this server")
            client = server.client(request, scope)
            answer = await handler(client, validated(model, await body_of(request)))
            if isinstance(answer, Response):
                answer.headers.update(headers | _NOT_KEPT)
                return answer
            response: Response = Json(answer)
        except RollenvError as error:
            kind, text, details = error_answer(error)
            response = Json({"detail": f"{text:.2000}", "kind": kind, "how": details.get("kind", "")}, status_of(error))
            headers |= retry_after(error)
        if len(response.body) > _LARGE and "gzip" in request.headers.get("accept-encoding", ""):
            response = Response(gzip.compress(response.body, 5), response.status_code, media_type=response.media_type)
            headers["Content-Encoding"] = "gzip"
        response.headers.update(headers | _NOT_KEPT)
        return response

    return answered
