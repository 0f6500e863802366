"""The web application of a server: its own routes and those of the protocols, behind a guard."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rollenv.core.errors import BadEntryPoint, MissingExtra, UsageError
from rollenv.core.needs import extra
from rollenv.remote import protocol
from rollenv.remote.protocol import NotAllowed
from rollenv.serve.auth import Client
from rollenv.serve.logs import Requests, opened_by
from rollenv.serve.monitoring import CONTENT_TYPE
from rollenv.serve.native import Native
from rollenv.serve.protocols import routes_of
from rollenv.serve.responses import EXPECTED, Json, left, refused
from rollenv.serve.server import SANDBOX_HOST, EnvServer, WebSocketEndpoint, denied, is_local
from rollenv.serve.websocket import WebSocket

with extra("serve", "rollenv serve"):
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, HTTPConnection, Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp, Receive, Scope, Send

#: Maximum bytes of a request's body, and maximum seconds for its arrival.
LARGEST_BODY, BODY_SECONDS = protocol.LARGEST_REQUEST, 60.0


def make_app(server: EnvServer) -> ASGIApp:
    """Return the web application of a server."""
    native_class = Native
    if server.settings.traces:
        from rollenv.serve import traces

        server.closing += traces.start_exporting()
        native_class, server.sessions.session_class = traces.TracedNative, traces.TracedSession
    routes = [*_own_routes(server, native_class), *_protocol_routes(server)]
    if index := server.settings.packages:
        routes.append(_packages(server, index))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        server.sessions.start()
        server.sandboxes.start()
        for start in server.opening:
            start()
        try:
            yield
        finally:
            await server.readiness.stop()
            for close in server.closing:
                await close()
            await server.sandboxes.stop()
            await server.sessions.stop()
            await server.sessions.workers.aclose()

    handlers = {**dict.fromkeys(EXPECTED, refused), ClientDisconnect: left}
    app = Starlette(routes=server.hosts + routes, lifespan=lifespan, exception_handlers=handlers)  # type: ignore[arg-type]
    guarded = RequestGuard(app, server)
    return Requests(traces.TracedRequests(guarded) if server.settings.traces else guarded)


def _own_routes(server: EnvServer, native_class: type[Native]) -> list[BaseRoute]:
    """Routes of the native protocol, and of those who watch a server."""

    async def native(client: Client, connection: HTTPConnection, socket: WebSocket) -> None:
        await native_class(server.sessions, client, socket, server.settings.silence).talk()

    async def livez(request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(request: Request) -> Response:
        """Report whether an environment of every family and a sandbox work."""
        problems = await server.readiness.problems()
        if not problems:
            return PlainTextResponse("ready\n")
        try:  # probes have no token; only administrators may read the errors
            server.client(request, "admin")
        except NotAllowed:
            problems = dict.fromkeys(problems, "failed")
        return PlainTextResponse("".join(f"{name}: {text:.500}\n" for name, text in problems.items()), 503)

    async def health(request: Request) -> Response:
        server.client(request, "admin")
        return Json(server.health())

    async def metrics(request: Request) -> Response:
        server.client(request, "admin")
        return Response(server.metrics.text(), media_type=CONTENT_TYPE)

    routes: list[BaseRoute] = [
        Route("/livez", livez),
        Route("/readyz", readyz),
        Route("/health", health),
        Route("/metrics", metrics),
        WebSocketRoute(protocol.PATH, WebSocketEndpoint(server, native, subprotocol=protocol.SUBPROTOCOL)),
    ]
    for route in routes:
        mark_opened(route, "readiness check" if route.path == "/readyz" else "rollenv")  # type: ignore[attr-defined]
    return routes


def _protocol_routes(server: EnvServer) -> Iterator[BaseRoute]:
    """Routes of the protocols; one of another package that cannot be loaded is left out and reported."""
    for name in server.settings.protocols:
        try:
            added = routes_of(name)(server)
        except (BadEntryPoint, MissingExtra) as error:
            warnings.warn(str(error), stacklevel=2)
            continue
        for route in added:
            mark_opened(route, name)
            yield route


def _packages(server: EnvServer, index: Path) -> Mount:
    """Serve an index of environment packages."""
    files = StaticFiles(directory=index, html=True)

    async def packages(scope: Scope, receive: Receive, send: Send) -> None:
        server.client(Request(scope), "environments")
        await files(scope, receive, send)

    return Mount("/packages", packages)


def mark_opened(route: Any, name: str) -> None:
    """Make a route's sessions bear the name of its protocol, which the page shows."""
    app = route.app

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        opened_by.set(name)
        await app(scope, receive, send)

    route.app = named


class RequestGuard:
    """Checks the Host and Origin headers and the size of the body of every request.

    A page on another site can make a browser send requests to this machine, and with DNS rebinding read the answers. So
    the host must be one of the server's names, and the origin, if any, the server's own.
    """

    def __init__(self, app: ASGIApp, server: EnvServer):
        self._app, self._settings, self._uploads = app, server.settings, server.uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = HTTPConnection(scope).headers
        host, origin, problem = headers.get("host", ""), headers.get("origin", ""), ""
        try:
            name = SANDBOX_HOST.sub("", urlsplit(f"//{host}").hostname or "")
            if self._settings.local and not (is_local(name) or name in self._settings.hosts):
                problem = f"this server is not {name!r:.80}; its administrator can allow the name with --allow-host"
            elif origin and urlsplit(origin).netloc != host:
                problem = f"pages of {origin!r:.80} may not use this server"
        except ValueError as error:
            problem = f"the Host or Origin header is invalid: {error}"
        length, most = headers.get("content-length", "0"), LARGEST_BODY
        if scope["path"] in self._uploads:
            most += self._settings.sandboxes.limits.disk_mb << 20
        if not problem and scope["type"] == "http" and (not length.isdigit() or int(length) > most):
            await PlainTextResponse(f"the body has more than {most} bytes\n", 413)(scope, receive, send)
        elif problem and scope["type"] == "http":
            await PlainTextResponse(problem + "\n", 403)(scope, receive, send)
        elif problem:
            await receive()
            await denied(send, 403, problem)
        else:
            await self._app(scope, self._limited(receive, most) if scope["type"] == "http" else receive, send)

    @staticmethod
    def _limited(receive: Receive, most: int) -> Receive:
        left, complete = most, False
        end = asyncio.get_running_loop().time() + BODY_SECONDS

        async def limited() -> Any:
            nonlocal left, complete
            if complete:
                return await receive()  # the disconnect, which has no deadline
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                raise UsageError(f"the body did not arrive within {BODY_SECONDS:g} s") from None
            complete = not message.get("more_body", False)
            left -= len(message.get("body", b""))
            if left < 0:
                raise UsageError(f"the body has more than {most} bytes")
            return message

        return limited
