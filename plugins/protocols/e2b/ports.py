"""Servers in a sandbox: requests to the host ``PORT-SANDBOX.DOMAIN`` (``sandbox.get_host(PORT)``) reach that port."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from typing import Any

import httpx
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from rollenv.core.errors import UsageError
from rollenv.plugins.protocols.e2b.service import E2BService
from rollenv.remote.protocol import NotAllowed, SessionGone
from rollenv.serve.responses import EXPECTED, Json, Streamed, status_of
from rollenv.serve.sandboxes import SandboxSession
from rollenv.serve.server import SANDBOX_HOST, denied

#: Maximum open ports of one sandbox; each has a socket on this machine.
_PORTS = 16
#: Timeout of the start of an answer, and between two pieces of it, in seconds.
_SECONDS = 300.0
_KEY = "e2b-traffic-access-token"
#: Headers that are not forwarded: of the connection and the key, and those that the WebSocket client adds itself.
_OURS = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", _KEY}
_WRITTEN = re.compile("sec-websocket-|host$")


class PortProxy(BaseRoute):
    """A reverse proxy to the ports of sandboxes.

    If the server has tokens, a request needs the sandbox's key in the header ``E2B-Traffic-Access-Token``. A request
    with a token of the server is refused, because untrusted code would receive the token.
    """

    def __init__(self, service: E2BService):
        self._service = service
        self._http = httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
        service.server.closing.append(self._http.aclose)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] not in ("http", "websocket"):
            return Match.NONE, {}
        match = SANDBOX_HOST.match(HTTPConnection(scope).headers.get("host", ""))
        return (Match.FULL, {"port": match}) if match else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request or a WebSocket to the port."""
        connection, port = HTTPConnection(scope), int(scope["port"][1])
        if scope["type"] == "websocket":
            await receive()  # the opening request
        answer: Response
        try:
            session = self._session(connection, port, scope["port"][2].lower())
            forward = await asyncio.to_thread(session.sandbox.sync.ports.forward, port)
            query = scope["query_string"].decode("latin-1")
            address = f"{forward.address}{scope['raw_path'].decode('latin-1')}{'?' if query else ''}{query}"
            if scope["type"] == "websocket":
                with self._service.request(session):
                    await _relay(scope, receive, send, address)
                return
            answer = await self._answer(Request(scope, receive), session, address)
        except (httpx.HTTPError, httpx.InvalidURL, WebSocketException, OSError):
            answer = Json({"code": 502, "message": f"The sandbox runs, but nothing answers at port {port}"}, 502)
        except EXPECTED as error:
            answer = Json({"code": status_of(error), "message": str(error)}, status_of(error))
        if scope["type"] == "http":
            await answer(scope, receive, send)
        else:
            await denied(send, answer.status_code, bytes(answer.body).decode())

    def _session(self, connection: HTTPConnection, port: int, name: str) -> SandboxSession:
        headers, tokens = connection.headers, self._service.server.tokens
        key = headers.get(_KEY, "")
        if tokens:
            for sent in (headers.get("authorization", ""), f"Bearer {headers.get('x-api-key', '')}"):
                with contextlib.suppress(NotAllowed):
                    tokens.client(sent)
                    raise UsageError("a token of the server must not reach the code in a sandbox; leave it out")
            if not key:
                raise NotAllowed(f"the port needs the sandbox's key: {_KEY} = sandbox.traffic_access_token")
        session = self._service.session(connection, name, key)
        ports = self._service.details(session).ports
        if len(ports | {port}) > _PORTS:
            raise UsageError(f"{_PORTS} ports of this sandbox are open already, and there are no more")
        ports.add(port)
        return session

    async def _answer(self, request: Request, session: SandboxSession, address: str) -> Response:
        headers = [(key, value) for key, value in request.headers.raw if key.decode() not in _OURS]
        body = "content-length" in request.headers or "transfer-encoding" in request.headers
        content = request.stream() if body else None
        times = {"timeout": httpx.Timeout(_SECONDS).as_dict()}
        # not the client's build_request, which adds headers
        sent = httpx.Request(request.method, f"http://{address}", headers=headers, content=content, extensions=times)
        response = await self._http.send(sent, stream=True)
        answer = Streamed(_pieces(response), "", self._service.request(session), response.status_code)
        answer.raw_headers = [pair for pair in response.headers.raw if pair[0].decode().lower() not in _OURS]
        return answer


async def _pieces(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in response.aiter_raw():
            yield piece
    except httpx.HTTPError as error:
        raise SessionGone(f"the server in the sandbox ended its answer: {error}") from error
    finally:
        await response.aclose()


async def _relay(scope: Scope, receive: Receive, send: Send, address: str) -> None:
    """Relay the messages of a WebSocket in both directions until one side disconnects."""
    headers = [(header.decode(), value.decode("latin-1")) for header, value in scope["headers"]]
    headers = [pair for pair in headers if pair[0] not in _OURS and not _WRITTEN.match(pair[0])]
    options: dict[str, Any] = {"proxy": None, "user_agent_header": None, "max_size": 1 << 20}
    options["subprotocols"] = scope.get("subprotocols") or None
    async with connect(f"ws://{address}", additional_headers=headers, **options) as inside:
        await send({"type": "websocket.accept", "subprotocol": inside.subprotocol})
        both = [asyncio.ensure_future(_in(receive, inside)), asyncio.ensure_future(_out(inside, send))]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in both:
            one.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _in(receive: Receive, inside: ClientConnection) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        await inside.send(message["text"] if message.get("text") is not None else message["bytes"])


async def _out(inside: ClientConnection, send: Send) -> None:
    code = 1011
    with contextlib.suppress(ConnectionClosed):
        async for message in inside:
            await send({"type": "websocket.send", "text" if isinstance(message, str) else "bytes": message})
        code = 1000
    await send({"type": "websocket.close", "code": code})
