"""OpenEnv: ``GenericEnvClient(base_url="http://HOST:PORT/openenv/ENV_ID")``.

An action is ``{"action": TEXT}``. An observation has ``text``, ``terminated``, ``truncated`` and ``info``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Send

from rollenv import __version__, cards
from rollenv.core import EpisodeOver, RollenvError, UsageError
from rollenv.remote.protocol import ServerFull, plain, session_name
from rollenv.serve.answers import Json, body_of
from rollenv.serve.app import Endpoint, Server
from rollenv.serve.auth import Client
from rollenv.serve.sessions import Session, served

_PATH = "/openenv/{env_id}"


class Action(BaseModel):
    """What a client sends to ``step``."""

    model_config = ConfigDict(extra="forbid")
    action: str = Field(description="What the agent does, in the form that the first observation explains.")
    metadata: dict[str, Any] = Field(default_factory=dict)


class Observation(BaseModel):
    """What ``reset`` and ``step`` return."""

    text: str
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = Field(default_factory=dict)


class State(BaseModel):
    """What ``state`` returns."""

    episode_id: str | None = None
    step_count: int = 0


class Play:
    """A client's session and what OpenEnv counts in it."""

    def __init__(self, session: Session):
        self.session, self.state = session, State()

    async def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        """Begin an episode.

        Args:
            data: "seed", "episode_id" and "options", each of which may be missing.
        """
        observation, info, *_ = await self.session.call("reset", [data.get("seed"), data.get("options") or {}])
        self.state = State(episode_id=data.get("episode_id") or session_name())
        return _told(Observation(text=observation, info=info), None, False)

    async def step(self, data: dict[str, Any]) -> dict[str, Any]:
        """Play a turn.

        Args:
            data: the fields of an :class:`Action`.
        """
        action = Action.model_validate(data).action
        if self.session.over and self.session.last_step:  # their environments may be stepped after the end
            observation, _, terminated, truncated, info, *_ = self.session.last_step
            reward = 0.0
        else:
            observation, reward, terminated, truncated, info, *_ = await self.session.call("step", [action])
            self.state.step_count += 1
        seen = Observation(text=observation, terminated=terminated, truncated=truncated, info=info)
        return _told(seen, reward, terminated or truncated)


def _told(seen: Observation, reward: float | None, done: bool) -> dict[str, Any]:
    return {"observation": seen.model_dump(), "reward": reward, "done": done, "metadata": {}}


def routes(server: Server) -> list[BaseRoute]:
    """The WebSocket, and what is asked over HTTP."""
    face = _Face(server)
    http = {"reset": ("POST", face.reset), "step": ("POST", face.step), "state": ("GET", face.state)}
    http |= {"health": ("GET", face.health), "metadata": ("GET", face.metadata), "schema": ("GET", face.schema)}
    http |= {"mcp": ("POST", face.mcp)}
    paths: dict[str, Any] = {f"/{name}": {verb.lower(): {"responses": {"200": {}}}} for name, (verb, _) in http.items()}

    async def openapi(request: Request) -> Response:
        about = {"title": served(request.path_params["env_id"]).id, "version": "1.0.0"}
        return Json({"openapi": "3.1.0", "info": about, "paths": paths})

    found: list[BaseRoute] = [Route(f"{_PATH}/{name}", f, methods=[verb]) for name, (verb, f) in http.items()]
    socket = WebSocketRoute(f"{_PATH}/ws", Endpoint(server, face.talk, scope="environments"))
    return [*found, Route(f"{_PATH}/openapi.json", openapi), socket]


class _Face:
    """What the routes lead to.

    Args:
        server: whose sessions are played.
    """

    def __init__(self, server: Server):
        self.server = server

    async def reset(self, request: Request) -> Response:
        """The first observation of an environment that lives as long as this request."""
        return await self._once(request, lambda play, body: play.reset(body))

    async def step(self, request: Request) -> Response:
        """The first turn of an environment that lives as long as this request."""

        async def call(play: Play, body: dict[str, Any]) -> dict[str, Any]:
            await play.reset({})
            action = body.get("action")
            return await play.step(action if isinstance(action, dict) else {"action": action})

        return await self._once(request, call)

    async def state(self, request: Request) -> Response:
        """Of an environment that was just made; a page of another site can ask for it, so none is."""
        self._allowed(request)
        served(request.path_params["env_id"])
        return Json(State().model_dump())

    async def health(self, request: Request) -> Response:
        """Whether there is such an environment."""
        served(request.path_params["env_id"])
        return Json({"status": "healthy"})

    async def metadata(self, request: Request) -> Response:
        """What it is."""
        found = served(request.path_params["env_id"])
        described = {"name": found.id, "description": cards.summary(found), "version": __version__}
        return Json(described | {"readme_content": None, "author": None, "documentation_url": None})

    async def schema(self, request: Request) -> Response:
        """The forms of actions, observations and states."""
        models: dict[str, type[BaseModel]] = {"action": Action, "observation": Observation, "state": State}
        return Json({name: model.model_json_schema() for name, model in models.items()})

    async def mcp(self, request: Request) -> Response:
        """Tools over JSON-RPC."""
        client = self._allowed(request)
        try:
            asked = await body_of(request)
        except UsageError as error:
            return Json(_rpc_error(None, -32700, str(error)))
        number, method, given = asked.get("id"), asked.get("method"), asked.get("params")
        if asked.get("jsonrpc") != "2.0" or not isinstance(method, str):
            return Json(_rpc_error(number, -32600, "not a request of JSON-RPC 2.0"))
        if method not in ("openenv/session/create", "openenv/session/close", "tools/list", "tools/call"):
            return Json(_rpc_error(number, -32601, f"there is no method {method!r:.40}"))
        try:
            result = await self._told(client, request, method, given if isinstance(given, dict) else {})
        except (RollenvError, ValueError) as error:
            return Json(_rpc_error(number, -32602, str(error)))
        return Json({"jsonrpc": "2.0", "id": number, "result": result})

    async def talk(self, client: Client, connection: HTTPConnection, receive: Receive, send: Send) -> None:
        """A session that lasts as long as its WebSocket."""
        try:
            session = await self._opened(client, connection)
        except RollenvError as error:
            await _send(send, _opening_error(self.server, error))
            await send({"type": "websocket.close", "code": 1000})
            return
        try:
            await _talk(Play(session), receive, send, self.server.settings.silence)
        finally:
            self.server.core.close(session)

    def _allowed(self, request: Request) -> Client:
        client = self.server.client(request)
        client.needs("environments")
        return client

    async def _opened(self, client: Client, connection: HTTPConnection) -> Session:
        return await self.server.core.open(session_name(), client.name, connection.path_params["env_id"])

    async def _once(self, request: Request, call: Callable[[Play, dict[str, Any]], Awaitable[Any]]) -> Response:
        """A request without a session: an environment of its own, as in OpenEnv."""
        client = self._allowed(request)  # first, for a body is read for clients alone
        body = await body_of(request)
        session = await self._opened(client, request)
        try:
            return Json(await call(Play(session), body))
        except ValueError as error:
            return Json({"detail": _errors(error)}, 422)
        finally:
            self.server.core.close(session)

    async def _told(self, client: Client, request: Request, method: str, params: dict[str, Any]) -> Any:
        """The result of a method of :meth:`mcp`."""
        if method == "openenv/session/create":
            return {"session_id": (await self._opened(client, request)).name}
        if method == "tools/list":
            return {"tools": _TOOLS}
        session = self.server.core.get(str(params.get("session_id")), client.name)
        if method == "tools/call":
            return await _tool(session, params)
        self.server.core.close(session)
        return {}


#: What an agent may call over MCP; a session comes from ``openenv/session/create``.
_TOOLS = [
    {
        "name": "reset",
        "description": "Begin an episode and see its first observation.",
        "inputSchema": {"type": "object", "properties": {"seed": {"type": "integer", "minimum": 0}}},
    },
    {"name": "step", "description": "Play a turn.", "inputSchema": Action.model_json_schema()},
]


async def _tool(session: Session, params: dict[str, Any]) -> dict[str, Any]:
    """Call a tool of MCP."""
    name, given = params.get("name"), params.get("arguments") or {}
    if name not in ("reset", "step") or not isinstance(given, dict):
        raise UsageError(f"there is no tool {name!r:.40}; there are reset and step")
    play = Play(session)
    told = await (play.reset(given) if name == "reset" else play.step(given))
    text = json.dumps(told, default=plain)
    return {"content": [{"type": "text", "text": text}], "structuredContent": told, "isError": False}


def _rpc_error(number: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


async def _talk(play: Play, receive: Receive, send: Send, silence: float) -> None:
    while True:
        try:
            async with asyncio.timeout(silence):
                message = await receive()
        except TimeoutError:
            await send({"type": "websocket.close", "code": 1001})
            return
        if message["type"] != "websocket.receive":
            return
        try:
            request = json.loads(message.get("text") or (message.get("bytes") or b"").decode())
            if not isinstance(request, dict):
                raise ValueError("it is no object")
        except (ValueError, RecursionError) as error:
            await _send(send, _error("INVALID_JSON", f"Invalid JSON: {error}"))
            continue
        kind, data = request.get("type"), request.get("data") or {}
        if kind == "close":
            await send({"type": "websocket.close", "code": 1000})
            return
        await _send(send, await _answer(play, kind, data))


async def _answer(play: Play, kind: Any, data: Any) -> dict[str, Any]:
    try:
        if not isinstance(data, dict):
            raise UsageError("data is not an object")
        if kind == "reset":
            return {"type": "observation", "data": await play.reset(data)}
        if kind == "step":
            return {"type": "observation", "data": await play.step(data)}
        if kind == "state":
            return {"type": "state", "data": play.state.model_dump()}
        return _error("UNKNOWN_TYPE", f"Unknown message type: {kind!r:.40}")
    except (EpisodeOver, UsageError) as error:
        return _error("EXECUTION_ERROR", str(error))
    except ValueError as error:
        return _error("VALIDATION_ERROR", "Invalid message", errors=_errors(error))
    except RollenvError as error:
        return _error("EXECUTION_ERROR", str(error))


def _opening_error(server: Server, error: RollenvError) -> dict[str, Any]:
    if isinstance(error, ServerFull):
        counts = {"active_sessions": len(server.core.sessions), "max_sessions": server.settings.terms.sessions}
        return _error("CAPACITY_REACHED", str(error), **counts)
    return _error("FACTORY_ERROR", str(error))


def _errors(error: ValueError) -> Any:
    if hasattr(error, "errors"):
        return error.errors(include_url=False, include_context=False, include_input=False)
    return [{"msg": str(error)}]


def _error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


async def _send(send: Send, value: dict[str, Any]) -> None:
    await send({"type": "websocket.send", "text": json.dumps(value, default=plain)})
