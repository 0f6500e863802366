"""Episodes that people play on the page, and those that they play again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response

from rollenv.core import EpisodeOver, NoSuchAbility, RollenvError, UsageError
from rollenv.remote.protocol import SessionGone, error_answer, session_name
from rollenv.serve.protocols.page.catalogue import Catalogue
from rollenv.serve.protocols.page.requests import ACTION, ACTIONS, PageRequest, turn_of
from rollenv.serve.responses import Streamed, json_of
from rollenv.serve.session import Session
from rollenv.serve.sessions import SessionManager, served

#: Bytes of the turns of a replay, and seconds that it may take.
TURNS_BYTES, SECONDS = 32 << 20, 300.0

#: What helps, the method that does and the ability that it needs.
_HELP = {"oracle": ("oracle_action", "oracle"), "random": ("sample_random_action", "random_action")}


class Episodes:
    """The requests of the page while somebody plays.

    Args:
        catalogue: knows how actions are written.
    """

    def __init__(self, sessions: SessionManager, catalogue: Catalogue):
        self._sessions, self._catalogue = sessions, catalogue

    async def open(self, asked: PageRequest) -> Any:
        """Open a session under the name that the page chose, so that it can end it meanwhile, and reset it.

        Raises:
            UsageError: there is such a session, or an argument is wrong.
        """
        name, seed, options = asked.text("session", 64), asked.seed(), asked.mapping("options")
        settings = {"kwargs": asked.mapping("kwargs"), "views": "board"}
        if name in self._sessions.by_name:
            raise UsageError("there is such a session already")
        session = await self._sessions.open(name, asked.client.name, asked.text("env"), settings)
        try:
            return await _turn(session, "reset", [seed, options])
        except BaseException:
            self._sessions.close(session)
            raise

    async def reset(self, asked: PageRequest) -> Any:
        """Begin another episode in a session."""
        session = self._session(asked)
        return await _turn(session, "reset", [asked.seed(), asked.mapping("options")])

    async def step(self, asked: PageRequest) -> Any:
        """Play an ``action``, or what was ``typed``, to which is added what agents have to write around it."""
        session = self._session(asked)
        if "action" in asked.body:
            action = asked.text("action", ACTION)
        else:
            typed = asked.text("typed", ACTION)
            reader = await self._catalogue.reader(asked.client.name, session.task.env_id, dict(session.task.kwargs))
            action = reader.action(typed)
        return await _turn(session, "step", [action])

    async def suggest(self, asked: PageRequest) -> Any:
        """The oracle's action, or a random one."""
        session = self._session(asked)
        return {"action": await _called(session, _method(asked.text("kind"), session.task.env_id), [])}

    async def end(self, asked: PageRequest) -> Any:
        """End a session, also one that is being opened or whose call hangs."""
        with contextlib.suppress(SessionGone):
            self._sessions.close(self._session(asked))
        return {}

    async def replay(self, asked: PageRequest) -> Response:
        """Play an episode again, or let the ``agent`` "oracle" or "random" play one: a line of JSON for each turn.

        The episode is ``env``, ``kwargs``, ``seed``, ``options`` and ``actions``.
        """
        seed, options, env_id = asked.seed(needed=True), asked.mapping("options"), asked.text("env")
        agent = asked.text("agent") if "agent" in asked.body else ""
        actions = asked.actions() if not agent else []
        method = _method(agent, env_id) if agent else ""
        settings = {"kwargs": asked.mapping("kwargs"), "views": "board"}
        session = await self._sessions.open(session_name(), asked.client.name, env_id, settings)
        try:
            first = await _turn(session, "reset", [seed, options])
        except BaseException:
            self._sessions.close(session)
            raise
        lines = self._replayed(session, first, _agent(session, method) if agent else _given(actions))
        end = contextlib.ExitStack()
        end.callback(self._sessions.close, session)
        return Streamed(lines, "application/x-ndjson", end)

    async def _replayed(
        self, session: Session, first: dict[str, Any], actions: AsyncGenerator[str]
    ) -> AsyncGenerator[bytes]:
        left, number = TURNS_BYTES, 0
        try:
            yield _line(first)
            async with asyncio.timeout(SECONDS):
                async for action in actions:
                    number += 1
                    line = _line(await _turn(session, "step", [action]))
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

    def _session(self, asked: PageRequest) -> Session:
        return self._sessions.get(asked.text("session", 64), asked.client.name)


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


def _line(value: dict[str, Any]) -> bytes:
    return json_of(value).encode() + b"\n"


def _problem(error: RollenvError) -> bytes:
    kind, text, details = error_answer(error)
    return _line({"detail": f"{text:.2000}", "kind": kind, "how": details.get("kind", "")})


async def _turn(session: Session, method: str, args: list[Any]) -> dict[str, Any]:
    return turn_of(method, args, await _called(session, method, args))


async def _called(session: Session, method: str, args: list[Any]) -> Any:
    """Call in a task of its own, which ends with the session even if the call hangs."""

    async def numbered() -> Any:
        return await session.numbered(session.count + 1, method, args)

    return await asyncio.get_running_loop().create_task(numbered())
