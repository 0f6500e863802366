"""OpenEnv's routes, over HTTP and over its WebSocket."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Send

from rollenv import __version__, cards
from rollenv.core import EpisodeOver, RollenvError, UsageError
from rollenv.remote.protocol import ServerFull, session_name
from rollenv.serve.auth import Client
from rollenv.serve.protocols.openenv import tools
from rollenv.serve.protocols.openenv.play import Action, Observation, Play, State
from rollenv.serve.responses import Json, body_of, json_of
from rollenv.serve.server import Endpoint, EnvServer
from rollenv.serve.session import Session
from rollenv.serve.sessions import served

_PATH = "/openenv/{env_id}"


def routes(server: EnvServer) -> list[BaseRoute]:
    """The WebSocket, and what is asked over HTTP."""
    service = _Service(server)
    http = {"reset": ("POST", service.reset), "step": ("POST", service.step), "state": ("GET", service.state)}
    http |= {
        "health": ("GET", service.health),
        "metadata": ("GET", service.metadata),
        "schema": ("GET", service.schema),
    }
    http |= {"mcp": ("POST", service.mcp)}
    paths: dict[str, Any] = {f"/{name}": {verb.lower(): {"responses": {"200": {}}}} for name, (verb, _) in http.items()}

    async def openapi(request: Request) -> Response:
        service._allowed(request)
        about = {"title": served(request.path_params["env_id"]).id, "version": "1.0.0"}
        return Json({"openapi": "3.1.0", "info": about, "paths": paths})

    found: list[BaseRoute] = [Route(f"{_PATH}/{name}", f, methods=[verb]) for name, (verb, f) in http.items()]
    socket = WebSocketRoute(f"{_PATH}/ws", Endpoint(server, service.talk, scope="environments"))
    return [*found, Route(f"{_PATH}/openapi.json", openapi), socket]


class _Service:
    """The handlers of the routes."""

    def __init__(self, server: EnvServer):
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
        """Return whether there is such an environment."""
        self._allowed(request)
        served(request.path_params["env_id"])
        return Json({"status": "healthy"})

    async def metadata(self, request: Request) -> Response:
        """Return the description of the environment."""
        self._allowed(request)
        found = served(request.path_params["env_id"])
        described = {"name": found.id, "description": cards.summary(found), "version": __version__}
        return Json(described | {"readme_content": None, "author": None, "documentation_url": None})

    async def schema(self, request: Request) -> Response:
        """The forms of actions, observations and states."""
        self._allowed(request)
        models: dict[str, type[BaseModel]] = {"action": Action, "observation": Observation, "state": State}
        return Json({name: model.model_json_schema() for name, model in models.items()})

    async def mcp(self, request: Request) -> Response:
        """Tools over JSON-RPC."""
        client = self._allowed(request)
        try:
            asked = await body_of(request)
        except UsageError as error:
            return Json(tools.refusal(None, -32700, str(error)))
        told = functools.partial(self._told, client, request)
        return Json(await tools.answer(asked, tools.HTTP_METHODS, told))

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
            self.server.sessions.close(session)

    def _allowed(self, request: Request) -> Client:
        client = self.server.client(request)
        client.needs("environments")
        return client

    async def _opened(self, client: Client, connection: HTTPConnection) -> Session:
        return await self.server.sessions.open(session_name(), client.name, connection.path_params["env_id"])

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
            self.server.sessions.close(session)

    async def _told(self, client: Client, request: Request, method: str, params: dict[str, Any]) -> Any:
        """The result of a method of :meth:`mcp`."""
        if method == "openenv/session/create":
            return {"session_id": (await self._opened(client, request)).name}
        if method == "tools/list":
            return {"tools": tools.TOOLS}
        session = self.server.sessions.get(str(params.get("session_id")), client.name)
        if method == "tools/call":
            return await tools.told(Play(session), method, params)
        self.server.sessions.close(session)
        return {}


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
            step = tools.act(play, data) if data.get("type") in tools.ACTIONS else play.step(data)
            return {"type": "observation", "data": await step}
        if kind == "mcp":
            told = functools.partial(tools.told, play)
            return {"type": "mcp", "data": await tools.answer(data, tools.METHODS, told)}
        if kind == "state":
            return {"type": "state", "data": play.state.model_dump()}
        return _error("UNKNOWN_TYPE", f"Unknown message type: {kind!r:.40}")
    except (EpisodeOver, UsageError) as error:
        return _error("EXECUTION_ERROR", str(error))
    except ValueError as error:
        return _error("VALIDATION_ERROR", "Invalid message", errors=_errors(error))
    except RollenvError as error:
        return _error("EXECUTION_ERROR", str(error))


def _opening_error(server: EnvServer, error: RollenvError) -> dict[str, Any]:
    if isinstance(error, ServerFull):
        counts = {"active_sessions": len(server.sessions.by_name), "max_sessions": server.settings.sessions.sessions}
        return _error("CAPACITY_REACHED", str(error), **counts)
    return _error("FACTORY_ERROR", str(error))


def _errors(error: ValueError) -> Any:
    if hasattr(error, "errors"):
        return error.errors(include_url=False, include_context=False, include_input=False)
    return [{"msg": str(error)}]


def _error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


async def _send(send: Send, value: dict[str, Any]) -> None:
    await send({"type": "websocket.send", "text": json_of(value)})
