"""OpenEnv: ``GenericEnvClient(base_url="http://HOST:PORT/openenv/ENV_ID")``, and ``MCPToolClient`` of the same address.

An action is ``{"action": TEXT}``. An observation has ``text``, ``terminated``, ``truncated`` and ``info``.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from rollenv.core import cards
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.version import __version__
from rollenv.remote.protocol import ServerFull, session_name
from rollenv.serve.auth import Client
from rollenv.serve.responses import Json, body_of, json_of, without_data
from rollenv.serve.server import EnvServer, WebSocketEndpoint
from rollenv.serve.session import EnvSession
from rollenv.serve.sessions import served
from rollenv.serve.websocket import WebSocket

_PATH = "/openenv/{env_id}"


class OpenEnvAction(BaseModel):
    """The body of a ``step`` request."""

    model_config = ConfigDict(extra="forbid", title="Action")  # the title is in the served schema
    action: str = Field(description="What the agent does, in the form that the first observation explains.")
    metadata: dict[str, Any] = Field(default_factory=dict)


class Observation(BaseModel):
    """The result of ``reset`` and ``step``."""

    text: str
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = Field(default_factory=dict)


class OpenEnvState(BaseModel):
    """The result of ``state``."""

    model_config = ConfigDict(title="State")
    episode_id: str | None = None
    step_count: int = 0


#: Tools for agents.
_TOOLS = [
    {
        "name": "reset",
        "description": "Begin an episode and see its first observation.",
        "inputSchema": {"type": "object", "properties": {"seed": {"type": "integer", "minimum": 0}}},
    },
    {"name": "step", "description": "Play a turn.", "inputSchema": OpenEnvAction.model_json_schema()},
]

#: ``type`` of the actions of ``MCPToolClient``.
_TOOL_ACTIONS = ("list_tools", "call_tool")

#: Methods of JSON-RPC over a WebSocket, and over HTTP, which needs explicit sessions.
_METHODS = ("tools/list", "tools/call")
_HTTP_METHODS = ("openenv/session/create", "openenv/session/close", *_METHODS)


class _Play:
    """A client's session with OpenEnv's state."""

    def __init__(self, session: EnvSession):
        self.session, self.state = session, OpenEnvState()

    async def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        """Start an episode; "seed", "episode_id" and "options" are optional."""
        observation, info, *_ = await self.session.call("reset", [data.get("seed"), data.get("options") or {}])
        self.state = OpenEnvState(episode_id=data.get("episode_id") or session_name())
        return _result({"text": observation, "terminated": False, "truncated": False, "info": info})

    async def step(self, data: dict[str, Any]) -> dict[str, Any]:
        """Play a turn with the fields of an :class:`OpenEnvAction`."""
        action = OpenEnvAction.model_validate(data).action
        last = self.session.env.last_step
        if self.session.env.over and last:  # OpenEnv allows steps after the end
            return _turn([last[0], 0.0, *last[2:]])
        return self.stepped(await self.session.call("step", [action]))

    def stepped(self, answer: list[Any]) -> dict[str, Any]:
        """Count a step and return its result."""
        self.state.step_count += 1
        return _turn(answer)

    async def call_tool(self, name: Any, arguments: Any) -> dict[str, Any]:
        """Call a tool and return the result of the reset or step."""
        if name not in ("reset", "step") or not isinstance(arguments, dict):
            raise UsageError(f"there is no tool {name!r:.40}; there are reset and step, which take an object")
        return await (self.reset(arguments) if name == "reset" else self.step(arguments))

    async def act(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a step of ``MCPToolClient``; the observation reports a failed call."""
        if data["type"] == "list_tools":
            return _result({"tools": [{**tool, "input_schema": tool["inputSchema"]} for tool in _TOOLS]})
        name = data.get("tool_name")
        observation: dict[str, Any] = {"tool_name": f"{name!s:.200}", "result": None, "error": None}
        try:
            result = await self.call_tool(name, data.get("arguments") or {})
        except (RollenvError, ValueError) as error:
            kind = "execution_error" if isinstance(error, RollenvError) else "invalid_args"
            if name not in ("reset", "step"):
                kind = "tool_not_found"
            return _result(observation | {"error": {"error_type": kind, "message": str(error)}})
        return result | {"observation": observation | {"result": result["observation"]}}

    async def tools(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a JSON-RPC method."""
        if method == "tools/list":
            return {"tools": _TOOLS}
        result = await self.call_tool(params.get("name"), params.get("arguments") or {})
        images = [image.as_json() for image in result["observation"]["info"].get("images", ())]
        result["observation"]["info"] = without_data(result["observation"]["info"])
        content: list[dict[str, Any]] = [{"type": "text", "text": json_of(result)}]
        content += [
            {"type": "image", "data": image["data"], "mimeType": image.get("media_type", "image/png")}
            for image in images
        ]
        return {"content": content, "structuredContent": result, "isError": False}


def _turn(answer: list[Any]) -> dict[str, Any]:
    observation, reward, terminated, truncated, info, *_ = answer
    fields = {"text": observation, "terminated": terminated, "truncated": truncated, "info": info}
    return _result(fields, reward, terminated or truncated)


def _result(observation: dict[str, Any], reward: float | None = None, done: bool = False) -> dict[str, Any]:
    return {"observation": observation, "reward": reward, "done": done, "metadata": {}}


async def _rpc(
    call: dict[str, Any], methods: tuple[str, ...], result: Callable[[str, dict[str, Any]], Awaitable[Any]]
) -> dict[str, Any]:
    """Answer a JSON-RPC request with the result of ``result(method, params)``."""
    number, method, params = call.get("id"), call.get("method"), call.get("params")
    if call.get("jsonrpc") != "2.0" or not isinstance(method, str):
        return _refusal(number, -32600, "not a request of JSON-RPC 2.0")
    if method not in methods:
        return _refusal(number, -32601, f"there is no method {method!r:.40}; there are {', '.join(methods)}")
    try:
        answer = await result(method, params if isinstance(params, dict) else {})
        return {"jsonrpc": "2.0", "id": number, "result": answer}
    except (RollenvError, ValueError) as error:
        return _refusal(number, -32602, str(error))


def _refusal(number: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def routes(server: EnvServer) -> list[BaseRoute]:
    """Routes of the WebSocket and of HTTP requests."""
    service = _Service(server)
    http: dict[str, tuple[str, Any]] = {
        "reset": ("POST", service.reset),
        "step": ("POST", service.step),
        "state": ("GET", service.state),
        "health": ("GET", service.health),
        "metadata": ("GET", service.metadata),
        "schema": ("GET", service.schema),
        "mcp": ("POST", service.mcp),
    }
    paths: dict[str, Any] = {f"/{name}": {verb.lower(): {"responses": {"200": {}}}} for name, (verb, _) in http.items()}

    async def openapi(request: Request) -> Response:
        about = {"title": service.spec(request).id, "version": "1.0.0"}
        return Json({"openapi": "3.1.0", "info": about, "paths": paths})

    routes: list[BaseRoute] = [Route(f"{_PATH}/{name}", f, methods=[verb]) for name, (verb, f) in http.items()]
    socket = WebSocketRoute(f"{_PATH}/ws", WebSocketEndpoint(server, service.talk, scope="environments"))
    return [*routes, Route(f"{_PATH}/openapi.json", openapi), socket]


class _Service:
    def __init__(self, server: EnvServer):
        self.server = server

    async def reset(self, request: Request) -> Response:
        """Return the first observation of an environment that ends with this request."""
        return await self._once(request, lambda play, body: play.reset(body))

    async def step(self, request: Request) -> Response:
        """Return the first turn of an environment that ends with this request."""

        async def call(play: _Play, body: dict[str, Any]) -> dict[str, Any]:
            await play.reset({})
            action = body.get("action")
            return await play.step(action if isinstance(action, dict) else {"action": action})

        return await self._once(request, call)

    async def state(self, request: Request) -> Response:
        """Return the initial state. No environment is built, because pages of other sites can send this request."""
        self.spec(request)
        return Json(OpenEnvState().model_dump())

    async def health(self, request: Request) -> Response:
        self.spec(request)
        return Json({"status": "healthy"})

    async def metadata(self, request: Request) -> Response:
        spec = self.spec(request)
        metadata = {"name": spec.id, "description": cards.summary(spec), "version": __version__}
        return Json(metadata | {"readme_content": None, "author": None, "documentation_url": None})

    async def schema(self, request: Request) -> Response:
        self.server.client(request, "environments")
        models: dict[str, type[BaseModel]] = {
            "action": OpenEnvAction,
            "observation": Observation,
            "state": OpenEnvState,
        }
        return Json({name: model.model_json_schema() for name, model in models.items()})

    async def mcp(self, request: Request) -> Response:
        client = self.server.client(request, "environments")
        try:
            call = await body_of(request)
        except UsageError as error:
            return Json(_refusal(None, -32700, str(error)))

        async def result(method: str, params: dict[str, Any]) -> Any:
            if method == "openenv/session/create":
                return {"session_id": (await self._opened(client, request)).name}
            if method == "tools/list":
                return {"tools": _TOOLS}
            session = self.server.sessions.get(str(params.get("session_id")), client.name)
            if method == "tools/call":
                return await _Play(session).tools(method, params)
            self.server.sessions.close(session)
            return {}

        return Json(await _rpc(call, _HTTP_METHODS, result))

    async def talk(self, client: Client, connection: HTTPConnection, socket: WebSocket) -> None:
        """Serve a session that ends with its WebSocket."""
        try:
            session = await self._opened(client, connection)
        except RollenvError as error:
            code, counts = "FACTORY_ERROR", {}
            if isinstance(error, ServerFull):
                sessions = self.server.sessions
                code = "CAPACITY_REACHED"
                counts = {"active_sessions": len(sessions.by_name), "max_sessions": sessions.limits.sessions}
            socket.write(json_of(_error(code, str(error), **counts)))
            await socket.send({"type": "websocket.close", "code": 1000})
            return
        try:
            await _Talk(_Play(session), socket).talk(self.server.settings.silence)
        finally:
            self.server.sessions.close(session)

    def spec(self, request: Request) -> EnvSpec:
        self.server.client(request, "environments")
        return served(request.path_params["env_id"])

    async def _opened(self, client: Client, connection: HTTPConnection) -> EnvSession:
        return await self.server.sessions.open(session_name(), client.name, connection.path_params["env_id"])

    async def _once(self, request: Request, call: Callable[[_Play, dict[str, Any]], Awaitable[Any]]) -> Response:
        """Answer a request without a session in an environment of its own, as in OpenEnv."""
        client = self.server.client(request, "environments")  # authenticate before the body is read
        body = await body_of(request)
        async with self.server.sessions.brief(client.name, request.path_params["env_id"]) as session:
            try:
                return Json(await call(_Play(session), body))
            except ValueError as error:
                return Json({"detail": _errors(error)}, 422)


class _Talk:
    """Answers the messages of a WebSocket in order."""

    def __init__(self, play: _Play, socket: WebSocket):
        self._play, self._session, self._socket = play, play.session, socket
        self._busy = False

    async def talk(self, silence: float) -> None:
        self._socket.listen(silence, self._take, lambda: self._busy or self._session.busy > 0)
        while (message := await self._socket.receive())["type"] == "websocket.receive":
            self._busy = True
            await self._session.step_over()
            answer = await self._answer(message.get("text") or message.get("bytes") or "")
            if answer is None:
                await self._socket.send({"type": "websocket.close", "code": 1000})
                return
            self._send(answer)
            await self._socket.writable.wait()
            self._busy = False

    def _take(self, message: str | bytes) -> bool:
        """Start a step that need not wait; leave other messages to :meth:`talk`."""
        if self._busy:
            return False
        try:
            request = _request(message)
            action = OpenEnvAction.model_validate(request.get("data")).action
        except (ValueError, RecursionError):
            return False
        done = self._stepped
        return request.get("type") == "step" and self._session.start_step(self._session.count + 1, action, done)

    def _stepped(self, outcome: list[Any] | RollenvError) -> None:
        if isinstance(outcome, RollenvError):
            self._send(_error("EXECUTION_ERROR", str(outcome)))
        else:
            self._send({"type": "observation", "data": self._play.stepped(outcome)})

    def _send(self, value: dict[str, Any]) -> None:
        try:
            text = json_of(value)
        except (ValueError, TypeError, RecursionError) as error:
            text = json_of(_error("EXECUTION_ERROR", f"the answer cannot be sent: {error}"))
        self._socket.write(text)

    async def _answer(self, message: str | bytes) -> dict[str, Any] | None:
        play = self._play
        try:
            request = _request(message)
        except (ValueError, RecursionError) as error:
            return _error("INVALID_JSON", f"Invalid JSON: {error}")
        kind, data = request.get("type"), request.get("data") or {}
        try:
            if kind == "close":
                return None
            if not isinstance(data, dict):
                raise UsageError("data is not an object")
            if kind == "reset":
                return {"type": "observation", "data": await play.reset(data)}
            if kind == "step":
                step = play.act(data) if data.get("type") in _TOOL_ACTIONS else play.step(data)
                return {"type": "observation", "data": await step}
            if kind == "mcp":
                return {"type": "mcp", "data": await _rpc(data, _METHODS, play.tools)}
            if kind == "state":
                return {"type": "state", "data": play.state.model_dump()}
            return _error("UNKNOWN_TYPE", f"Unknown message type: {kind!r:.40}")
        except RollenvError as error:
            return _error("EXECUTION_ERROR", str(error))
        except ValueError as error:
            return _error("VALIDATION_ERROR", "Invalid message", errors=_errors(error))


def _request(message: str | bytes) -> dict[str, Any]:
    request = json.loads(message if isinstance(message, str) else message.decode())
    if not isinstance(request, dict):
        raise ValueError("it is not an object")
    return request


def _errors(error: ValueError) -> Any:
    if hasattr(error, "errors"):
        return error.errors(include_url=False, include_context=False, include_input=False)
    return [{"msg": str(error)}]


def _error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}
