"""MCP over streamable HTTP: environments and sandboxes as tools of agents.

``/mcp`` has tools for all environments and sandboxes, ``/mcp/env/ENV_ID`` has ``reset`` and ``step`` of one
environment. Environments and sandboxes end with the MCP session that opened them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from pydantic import ValidationError
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from rollenv.core import cards
from rollenv.core.errors import UsageError
from rollenv.core.needs import extra
from rollenv.core.tools.python import shortened
from rollenv.core.version import __version__
from rollenv.remote.protocol import FAILED, NotAllowed, ServerFull, SessionGone
from rollenv.serve.auth import Client
from rollenv.serve.protocols.mcp.tools import EVERY, ONE, Held
from rollenv.serve.quotas import stopping
from rollenv.serve.responses import EXPECTED, Json, json_of, retry_after, status_of, wrong_fields
from rollenv.serve.server import EnvServer
from rollenv.serve.sessions import served

with extra("serve", "The MCP protocol"):
    from mcp import types
    from mcp.server.lowlevel import Server as Protocol
    from mcp.server.streamable_http import StreamableHTTPServerTransport
    from mcp_types import INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

logger = logging.getLogger(__name__)

#: Maximum concurrent requests of one MCP session.
_AT_ONCE = 32

#: The instructions that a client gets when it connects.
_INSTRUCTIONS = (
    "Environments for agents: list_environments finds one, reset begins an episode, step plays it until it is over. "
    "Sandboxes for code: run_code, run_command and the file tools share one, which is started when it is first used."
)


class McpSession:
    """An MCP session."""

    def __init__(self, held: Held, left: Callable[[McpSession], None]):
        self.held, self.name, self._left = held, uuid4().hex, left
        self._tools = {t.name: t for t in (ONE if held.env_id else EVERY) if t.scope in held.client.scopes}
        self.transport = StreamableHTTPServerTransport(self.name)
        self._protocol: Protocol[Any] = Protocol(
            "rollenv",
            version=__version__,
            instructions=cards.summary(served(held.env_id)) if held.env_id else _INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        self.established, self._ending, self._busy = False, False, 0
        self._running: dict[str, asyncio.Event] = {}
        """Events for the ends of running requests, by id."""
        self._calls: set[asyncio.Task[types.CallToolResult]] = set()
        self._idle: asyncio.TimerHandle | None = None
        self._ready = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def serve(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        """Answer a request; meanwhile the session is not idle.

        A request waits for the end of one with the same id, because the transport would confuse their answers: a client
        may read the answer to the first request, and reuse its id, before that request has ended here.

        Raises:
            ServerFull: too many other requests are running.
        """
        if self._busy >= _AT_ONCE:
            raise ServerFull(f"{self._busy} requests of this MCP session run already", retry_after=1.0)
        number, over = str(_request_id(body)), asyncio.Event()
        self._busy += 1
        if self._idle is not None:
            self._idle.cancel()
        try:
            while number != "None" and (other := self._running.get(number)) is not None:
                await other.wait()
            self._running[number] = over
            await self._ready.wait()
            await self.transport.handle_request(scope, receive, send)
        finally:
            if self._running.get(number) is over:
                del self._running[number]
            over.set()
            self._busy -= 1
            if not self._busy and not self._ending:
                seconds = self.held.server.settings.sessions.idle
                self._idle = asyncio.get_running_loop().call_later(seconds, self.end)

    def end(self) -> None:
        """Let :attr:`task` end the session and everything that it opened."""
        if not self._ending:
            self._ending = True
            self.task.cancel()

    async def _run(self) -> None:
        try:
            async with self.transport.connect() as (read, write):
                self._ready.set()
                await self._protocol.run(read, write, self._protocol.create_initialization_options())
        except Exception:
            logger.exception("an MCP session of %s failed", self.held.client.name)
        finally:
            self._ending = True  # end() must not cancel the cleanup
            self._left(self)
            self._ready.set()
            if self._idle is not None:
                self._idle.cancel()
            for call in self._calls:
                call.cancel()
            await asyncio.gather(self.transport.terminate(), *self._calls, return_exceptions=True)
            await self.held.end()

    async def _list(self, context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool.schema for tool in self._tools.values()])

    async def _call(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Call a tool in a task of its own, which is cancelled only once so that it can clean up."""
        call = asyncio.get_running_loop().create_task(self._called(params.name, params.arguments or {}))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            call.cancel()
            raise

    async def _called(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        try:
            tool = self._tools.get(name)
            if tool is None:
                raise UsageError(f"there is no tool {name!r:.40}; there are {', '.join(self._tools)}")
            answer, data = await tool.call(self.held, arguments)
            content: list[types.ContentBlock] = [types.TextContent(text=answer)] if isinstance(answer, str) else answer
            for part in content:  # texts of environments may have lone surrogates
                if isinstance(part, types.TextContent):
                    part.text = _utf8(part.text)
            plain = json.loads(json_of(data), parse_constant=lambda _: None)  # JSON has no NaN
            return types.CallToolResult(content=content, structured_content=_valid(plain))
        except ValidationError as error:
            problem = f"wrong arguments of {name}: {wrong_fields(error)}"
        except EXPECTED as error:
            problem = str(error)
        except Exception:
            logger.exception("the MCP tool %s failed", name)
            problem = FAILED
        return types.CallToolResult(content=[types.TextContent(text=_utf8(shortened(problem)))], is_error=True)


def _request_id(body: bytes) -> str | int | None:
    """Return the id of a request; None if it has none."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return None
    found = message.get("id") if isinstance(message, dict) else None
    return found if isinstance(found, str | int) else None


def _valid(value: Any) -> Any:
    """Replace lone surrogates in all texts of a value."""
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, list):
        return [_valid(each) for each in value]
    return {_utf8(key): _valid(each) for key, each in value.items()} if isinstance(value, dict) else value


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class Door:
    """The endpoint of all MCP sessions."""

    def __init__(self, server: EnvServer):
        self.server = server
        self.talks: dict[str, McpSession] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with an error of the protocol."""
        talk: McpSession | None = None
        started, body = False, b""

        async def send_and_record(message: Message) -> None:
            nonlocal started
            started = True
            if talk is not None and message["type"] == "http.response.start":
                talk.established = talk.established or message["status"] < 400
            await send(message)

        try:
            request = Request(scope, receive)
            client, env_id = self.server.client(request), request.path_params.get("env_id", "")
            if env_id or "sandboxes" not in client.scopes:
                client.needs("environments")
            if env_id:
                served(env_id)
            body = await request.body()
            if (refusal := _refusal(request, body)) is not None:
                await refusal(scope, receive, send)
                return
            talk = self._talk(request.headers.get("mcp-session-id"), client, env_id)
            await talk.serve(scope, _again(body, receive), send_and_record, body)
        except EXPECTED as error:
            if started:
                raise
            headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, NotAllowed) else {}
            refused = _error(body, INVALID_REQUEST, str(error))
            answer = Json(refused, status_of(error), headers | retry_after(error))
            await answer(scope, receive, send)
        finally:
            if talk is not None and (talk.transport.is_terminated or not talk.established):
                talk.end()

    async def stop(self) -> None:
        talks = list(self.talks.values())
        for talk in talks:
            talk.end()
        await asyncio.gather(*(talk.task for talk in talks), return_exceptions=True)

    def _talk(self, name: str | None, client: Client, env_id: str) -> McpSession:
        """Return the session with a name, or a new one."""
        if name is None:
            sessions, limits = self.server.sessions, self.server.settings.sessions
            mine = sum(talk.held.client.name == client.name for talk in self.talks.values())
            if sessions.draining:
                raise stopping()
            most = sessions.limiter.quota(client.name).sessions or limits.sessions
            if len(self.talks) >= limits.sessions or mine >= most:
                raise ServerFull("all MCP sessions are taken", retry_after=1.0)
            talk = McpSession(Held(self.server, client, env_id), self._left)
            self.talks[talk.name] = talk
            return talk
        known = self.talks.get(name)
        if known is None or (known.held.client, known.held.env_id) != (client, env_id):
            raise SessionGone("there is no such MCP session: it has ended; initialize begins another")
        return known

    def _left(self, talk: McpSession) -> None:
        self.talks.pop(talk.name, None)


def _refusal(request: Request, body: bytes) -> Json | None:
    """Return the refusal of an unsupported method or protocol version; None for other requests."""
    if request.method not in ("POST", "DELETE"):  # the server sends no messages of its own, so there is no stream
        return Json(_error(body, INVALID_REQUEST, "POST and DELETE only"), 405, {"Allow": "POST, DELETE"})
    version = request.headers.get("mcp-protocol-version", HANDSHAKE_PROTOCOL_VERSIONS[0])
    if version in HANDSHAKE_PROTOCOL_VERSIONS:
        return None
    data = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version}  # later versions have no sessions
    spoken = f"sessions begin with initialize here, in the revisions {', '.join(HANDSHAKE_PROTOCOL_VERSIONS)}"
    return Json(_error(body, UNSUPPORTED_PROTOCOL_VERSION, spoken, data), 400)


def _error(body: bytes, code: int, message: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    error = {"code": code, "message": message} | ({"data": data} if data else {})
    return {"jsonrpc": "2.0", "id": _request_id(body), "error": error}


def _again(body: bytes, receive: Receive) -> Receive:
    """Repeat the body of a request that has been read."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def routes(server: EnvServer) -> list[BaseRoute]:
    """Routes of all tools, and of those of one environment."""
    door = Door(server)
    server.closing.append(door.stop)
    return [Route("/mcp", door), Route("/mcp/env/{env_id}", door)]
