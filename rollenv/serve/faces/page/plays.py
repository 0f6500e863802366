"""Episodes that people play on the page, and those that they play again."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from rollenv.core import EpisodeOver, NoSuchAbility, RollenvError, UsageError
from rollenv.remote.protocol import SessionGone, error_answer, session_name
from rollenv.serve.app import json_of
from rollenv.serve.auth import Client
from rollenv.serve.faces.page.catalogue import Catalogue, mapping_of, text_of
from rollenv.serve.faces.page.turns import ACTION, turn_of
from rollenv.serve.sessions import Session, Sessions, served

#: Actions of a replay, bytes of all of them and of its turns, and seconds that it may take.
ACTIONS, BYTES, TURNS_BYTES, SECONDS = 2_000, 1 << 20, 32 << 20, 300.0

#: Seeds that are drawn where none is given are below.
_SEEDS = 10_000

#: What helps, the method that does and the ability that it needs.
_HELP = {"oracle": ("oracle_action", "oracle"), "random": ("sample_random_action", "random_action")}


class Plays:
    """What the page asks for while somebody plays.

    Args:
        core: the server's sessions.
        catalogue: knows how actions are written.
    """

    def __init__(self, core: Sessions, catalogue: Catalogue):
        self._core, self._catalogue = core, catalogue

    async def open(self, client: Client, body: dict[str, Any]) -> Any:
        """Open a session under the name that the page chose, so that it can end it meanwhile, and reset it."""
        name, seed, options = text_of(body, "session", 64), seed_of(body), mapping_of(body, "options")
        settings = {"kwargs": mapping_of(body, "kwargs"), "views": "board"}
        if name in self._core.sessions:
            raise UsageError("there is such a session already")
        session = await self._core.open(name, client.name, text_of(body, "env"), settings)
        try:
            return await _turn(session, "reset", [seed, options])
        except BaseException:
            self._core.close(session)
            raise

    async def reset(self, client: Client, body: dict[str, Any]) -> Any:
        """Begin another episode in a session."""
        session = self._session(client, body)
        return await _turn(session, "reset", [seed_of(body), mapping_of(body, "options")])

    async def step(self, client: Client, body: dict[str, Any]) -> Any:
        """Play an ``action``, or what was ``typed``, to which is added what agents have to write around it."""
        session = self._session(client, body)
        if "action" in body:
            action = text_of(body, "action", ACTION)
        else:
            typed = text_of(body, "typed", ACTION)
            reader = await self._catalogue.reader(client.name, session.task.env_id, dict(session.task.kwargs))
            action = reader.action(typed)
        return await _turn(session, "step", [action])

    async def suggest(self, client: Client, body: dict[str, Any]) -> Any:
        """The oracle's action, or a random one."""
        session = self._session(client, body)
        return {"action": await _called(session, _method(text_of(body, "kind"), session.task.env_id), [])}

    async def end(self, client: Client, body: dict[str, Any]) -> Any:
        """End a session, also one that is being opened or whose call hangs."""
        with contextlib.suppress(SessionGone):
            self._core.close(self._session(client, body))
        return {}

    async def replay(self, client: Client, body: dict[str, Any]) -> Response:
        """Play an episode again, or let the ``agent`` "oracle" or "random" play one: a line of JSON for each turn.

        The episode is ``env``, ``kwargs``, ``seed``, ``options`` and ``actions``.
        """
        seed, options, env_id = seed_of(body, needed=True), mapping_of(body, "options"), text_of(body, "env")
        agent = text_of(body, "agent") if "agent" in body else ""
        actions = actions_of(body) if not agent else []
        method = _method(agent, env_id) if agent else ""
        settings = {"kwargs": mapping_of(body, "kwargs"), "views": "board"}
        session = await self._core.open(session_name(), client.name, env_id, settings)
        try:
            first = await _turn(session, "reset", [seed, options])
        except BaseException:
            self._core.close(session)
            raise
        return _Lines(self._replayed(session, first, _agent(session, method) if agent else _given(actions)))

    async def _replayed(
        self, session: Session, first: dict[str, Any], actions: AsyncGenerator[str]
    ) -> AsyncGenerator[str]:
        left, number = TURNS_BYTES, 0
        try:
            yield json_of(first) + "\n"
            async with asyncio.timeout(SECONDS):
                async for action in actions:
                    number += 1
                    line = json_of(await _turn(session, "step", [action])) + "\n"
                    left -= len(line)
                    if left < 0:
                        raise UsageError(f"turn {number} and later ones are not shown: the episode is too large")
                    yield line
        except TimeoutError:
            yield _problem(UsageError(f"the replay took longer than {SECONDS:g} s, so it was ended"))
        except EpisodeOver:
            yield _problem(UsageError("the episode is over, but the link has more actions"))
        except RollenvError as error:
            yield _problem(error)
        finally:
            self._core.close(session)

    def _session(self, client: Client, body: dict[str, Any]) -> Session:
        return self._core.get(text_of(body, "session", 64), client.name)


def _method(kind: str, env_id: str) -> str:
    """The method that suggests actions."""
    if kind not in _HELP:
        raise UsageError(f"there is no suggestion {kind!r:.40}; there are {', '.join(_HELP)}")
    method, ability = _HELP[kind]
    if ability not in served(env_id).abilities:
        raise NoSuchAbility(f"{env_id} has no {method}")
    return method


async def _given(actions: list[str]) -> AsyncGenerator[str]:
    for action in actions:
        yield action


async def _agent(session: Session, method: str) -> AsyncGenerator[str]:
    """The actions of an episode that an agent of the environment's own plays to its end."""
    for _ in range(ACTIONS):
        if session.over:
            return
        yield await _called(session, method, [])


class _Lines(StreamingResponse):
    """Lines whose source ends when nobody reads them any more."""

    def __init__(self, lines: AsyncGenerator[str]):
        super().__init__(lines, media_type="application/x-ndjson")
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._lines):
            await super().__call__(scope, receive, send)


def _problem(error: RollenvError) -> str:
    kind, text, details = error_answer(error)
    return json_of({"detail": f"{text:.2000}", "kind": kind, "how": details.get("kind", "")}) + "\n"


async def _turn(session: Session, method: str, args: list[Any]) -> dict[str, Any]:
    return turn_of(method, args, await _called(session, method, args))


async def _called(session: Session, method: str, args: list[Any]) -> Any:
    """Call in a task of its own, which ends with the session even if the call hangs."""

    async def numbered() -> Any:
        return await session.numbered(session.count + 1, method, args)

    return await asyncio.get_running_loop().create_task(numbered())


def seed_of(body: dict[str, Any], *, needed: bool = False) -> int:
    """The seed of a request: digits, for numbers of JavaScript are not exact; a small random one if there is none.

    Args:
        body: of the request.
        needed: whether there has to be one.

    Raises:
        UsageError: it is no seed.
    """
    given = body.get("seed", "")
    if given == "" and not needed:
        return secrets.randbelow(_SEEDS)
    digits = str(given) if isinstance(given, int) and not isinstance(given, bool) else given
    if not isinstance(digits, str) or not (digits.isascii() and digits.isdigit()) or int(digits[:20]) >= 1 << 63:
        raise UsageError(f"a seed is a whole number from 0 to {(1 << 63) - 1}, not {given!r:.40}")
    return int(digits)


def actions_of(body: dict[str, Any]) -> list[str]:
    """The actions of a replay.

    Raises:
        UsageError: they are no texts, or too many or too long.
    """
    actions = body.get("actions")
    if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
        raise UsageError("the request needs 'actions', a list of texts")
    size = sum(len(action.encode("utf-8", "replace")) for action in actions)
    if len(actions) > ACTIONS or size > BYTES:
        raise UsageError(
            f"{len(actions)} actions of {size} bytes are too long a replay; at most {ACTIONS} of {BYTES} bytes are "
            "played"
        )
    return actions
