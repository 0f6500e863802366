"""MCP over streamable HTTP: environments and sandboxes as tools of agents.

``/mcp`` has tools for everything that the server offers, ``/mcp/env/ENV_ID`` has ``reset`` and ``step`` of one
environment. What a client opens in an MCP session ends with it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from rollenv.core import RollenvError
from rollenv.needs import extra
from rollenv.remote.protocol import NotAllowed, ServerFull, SessionGone
from rollenv.serve.auth import Client
from rollenv.serve.protocols.mcp.sessions import McpSession
from rollenv.serve.protocols.mcp.tools import Held
from rollenv.serve.responses import Json, retry_after, status_of
from rollenv.serve.server import EnvServer
from rollenv.serve.sessions import served

with extra("serve", "The MCP protocol"):
    from mcp_types import INVALID_REQUEST, UNSUPPORTED_PROTOCOL_VERSION
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS


class Door:
    """Takes requests for all MCP sessions."""

    def __init__(self, server: EnvServer):
        self.server = server
        self.talks: dict[str, McpSession] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it in the protocol's words."""
        talk: McpSession | None = None
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            if talk is not None and message["type"] == "http.response.start":
                talk.established = talk.established or message["status"] < 400
            await send(message)

        try:
            request = Request(scope, receive)
            client, env_id = self._client(request)
            if (refusal := _refusal(request)) is not None:
                await refusal(scope, receive, send)
                return
            body = await request.body()
            talk = self._talk(request.headers.get("mcp-session-id"), client, env_id)
            await talk.serve(scope, _again(body, receive), watched, body)
        except RollenvError as error:
            if begun:
                raise
            await _told(error)(scope, receive, send)
        finally:
            if talk is not None and (talk.transport.is_terminated or not talk.established):
                talk.end()

    async def stop(self) -> None:
        """End all sessions."""
        talks = list(self.talks.values())
        for talk in talks:
            talk.end()
        await asyncio.gather(*(talk.task for talk in talks), return_exceptions=True)

    def _client(self, request: Request) -> tuple[Client, str]:
        """Return the client, and the only environment that it may use."""
        client, env_id = self.server.client(request), request.path_params.get("env_id", "")
        if env_id or "sandboxes" not in client.scopes:
            client.needs("environments")
        if env_id:
            served(env_id)
        return client, env_id

    def _talk(self, name: str | None, client: Client, env_id: str) -> McpSession:
        """The session of this name, or a new one."""
        if name is None:
            self._admit(client.name)
            talk = McpSession(Held(self.server, client, env_id), self._left)
            self.talks[talk.name] = talk
            return talk
        found = self.talks.get(name)
        if found is None or (found.held.client, found.held.env_id) != (client, env_id):
            raise SessionGone("there is no such MCP session: it has ended; initialize begins another")
        return found

    def _left(self, talk: McpSession) -> None:
        self.talks.pop(talk.name, None)

    def _admit(self, owner: str) -> None:
        sessions, limits = self.server.sessions, self.server.settings.sessions
        mine = sum(talk.held.client.name == owner for talk in self.talks.values())
        if sessions.draining:
            raise ServerFull("the server is about to stop", retry_after=5.0, draining=True)
        if len(self.talks) >= limits.sessions or mine >= (sessions.limiter.quota(owner).sessions or limits.sessions):
            raise ServerFull("all MCP sessions are taken", retry_after=1.0)


def _refusal(request: Request) -> Json | None:
    """Return the response to a request whose session does not exist; None if it does."""
    if request.method not in ("POST", "DELETE"):  # the server has nothing to say on its own, so there is no stream
        return Json(_error(INVALID_REQUEST, "POST and DELETE only"), 405, {"Allow": "POST, DELETE"})
    version = request.headers.get("mcp-protocol-version", HANDSHAKE_PROTOCOL_VERSIONS[0])
    if version in HANDSHAKE_PROTOCOL_VERSIONS:
        return None
    data = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version}  # later ones have no sessions
    return Json(_error(UNSUPPORTED_PROTOCOL_VERSION, "sessions begin with initialize here", data), 400)


def _told(error: RollenvError) -> Json:
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, NotAllowed) else {}
    return Json(_error(INVALID_REQUEST, str(error)), status_of(error), headers | retry_after(error))


def _error(code: int, message: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    error = {"code": code, "message": message} | ({"data": data} if data else {})
    return {"jsonrpc": "2.0", "id": None, "error": error}


def _again(body: bytes, receive: Receive) -> Receive:
    """The messages of a request whose body has been read."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def routes(server: EnvServer) -> list[BaseRoute]:
    """All tools, and those of one environment."""
    door = Door(server)
    server.closing.append(door.stop)
    return [Route("/mcp", door), Route("/mcp/env/{env_id}", door)]
