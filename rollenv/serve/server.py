"""The web application: one set of sessions and sandboxes behind all protocols."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rollenv import __version__
from rollenv.core import RollenvError, UsageError
from rollenv.needs import extra
from rollenv.remote import protocol
from rollenv.remote.protocol import NotAllowed, ServerFull, TooFast
from rollenv.rollout.group_reward import GroupReward, group_function
from rollenv.rollout.workers.pool import WorkerPool
from rollenv.serve.auth import Client, Tokens
from rollenv.serve.handover import IMPORT_PATH, import_file, import_session, is_url
from rollenv.serve.logs import Requests, audit
from rollenv.serve.monitoring import CONTENT_TYPE, Metrics, ReadinessChecks
from rollenv.serve.native import Native
from rollenv.serve.protocols import PROTOCOLS
from rollenv.serve.quotas import RateLimiter, SessionLimits
from rollenv.serve.responses import Json, left, refused, status_of
from rollenv.serve.sandboxes import SandboxLimits, SandboxManager
from rollenv.serve.sessions import SessionManager
from rollenv.serve.websocket import EXTENSION, WebSocket

with extra("serve", "rollenv serve"):
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, HTTPConnection, Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import BaseRoute, Route, WebSocketRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

#: The name of a host that is a port of a sandbox, before the server's own.
SANDBOX_HOST = re.compile(r"(\d{1,5})-([0-9a-f]{36})\.", re.IGNORECASE)

#: Bytes of the body of a request.
LARGEST_BODY = protocol.LARGEST_REQUEST

#: Seconds in which it has to arrive.
BODY_SECONDS = 60.0


@dataclass(frozen=True)
class Settings:
    """The settings of a server."""

    host: str = "127.0.0.1"
    protocols: tuple[str, ...] = PROTOCOLS
    hosts: tuple[str, ...] = ()
    """Names by which clients may call it, besides its own address and those of this machine."""
    tokens: Path | None = None
    tls: tuple[Path, Path] | None = None
    """Files of the certificate and its key."""
    drain: float = 30.0
    """Seconds that sessions get to end before the server stops."""
    hand_over: str = ""
    """A file or the URL of a server where sessions go on when this one stops."""
    silence: float = 900.0
    """Seconds without a message after which a connection is closed."""
    group_reward: str = ""
    """``module:function`` that scores groups for the protocol ``ors``."""
    traces: bool = False
    """Send traces to a collector of OpenTelemetry."""
    sessions: SessionLimits = field(default_factory=SessionLimits)
    sandboxes: SandboxLimits = field(default_factory=SandboxLimits)

    @property
    def local(self) -> bool:
        """True if only this machine can reach it."""
        return is_local(self.host)


def is_local(host: str) -> bool:
    """Return whether a host is this machine, seen from itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class EnvServer:
    """The state that all protocols share.

    Raises:
        UsageError: it would listen to other machines without tokens.
    """

    def __init__(self, settings: Settings, workers: WorkerPool):
        self.settings = settings
        self.tokens = Tokens.read(settings.tokens) if settings.tokens else Tokens({})
        if not self.tokens and not settings.local:
            raise UsageError(
                f"on {settings.host} other machines can reach the server, so it needs tokens: make one with "
                "`rollenv serve --new-token NAME >> tokens.toml` and pass --tokens tokens.toml"
            )
        limiter = RateLimiter(settings.sessions.each, self.tokens.quotas)
        self.sessions = SessionManager(workers, settings.sessions, limiter)
        self.sandboxes = SandboxManager(settings.sandboxes, limiter)
        self.group_reward: GroupReward | None = None
        if settings.group_reward:
            self.group_reward = GroupReward(group_function(settings.group_reward), settings.sessions.step)
        self.uploads: set[str] = set()
        """Paths whose bodies are files for sandboxes."""
        self.hosts: list[BaseRoute] = []
        """Routes of other hosts than the server's own."""
        self.metrics = Metrics(self.sessions, self.sandboxes)
        self.readiness = ReadinessChecks(self.sessions, self.sandboxes)
        self.started = time.time()
        self.opening: list[Callable[[], None]] = []
        """Called when the server starts."""
        self.closing: list[Callable[[], Awaitable[None]]] = []
        """Called when the server stops."""
        self.native_class: type[Native] = Native
        self._traced: Callable[[ASGIApp], ASGIApp] = lambda app: app
        if settings.traces:
            from rollenv.serve import traces

            self.closing += traces.start_exporting()
            self._traced, self.native_class = traces.TracedRequests, traces.TracedNative
            self.sessions.session_class = traces.TracedSession

    def client(self, connection: HTTPConnection) -> Client:
        """Return the client of a request: its token is in the header ``X-API-Key`` or ``Authorization``."""
        key = connection.headers.get("x-api-key")
        try:
            client = self.tokens.client(f"Bearer {key}" if key else connection.headers.get("authorization", ""))
        except NotAllowed as error:
            audit("refused", "nobody", path=connection.url.path, why=str(error))
            raise
        self.asks(connection, client.name)
        return client

    def asks(self, connection: HTTPConnection, name: str) -> None:
        """Count a request of a client, and write down that it is this client's."""
        connection.scope.setdefault("state", {})["client"] = name
        self.sessions.limiter.take(name)

    def app(self) -> ASGIApp:
        """The web application."""
        routes: list[BaseRoute] = [
            Route("/livez", self._alive),
            Route("/readyz", self._ready),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route(IMPORT_PATH, self._import_session, methods=["POST"]),
            WebSocketRoute(protocol.PATH, Endpoint(self, self._native, subprotocol=protocol.SUBPROTOCOL)),
        ]
        for name in self.settings.protocols:
            if name not in PROTOCOLS:
                raise UsageError(f"there is no protocol {name!r}; there are {', '.join(PROTOCOLS)}")
            routes += importlib.import_module(f"rollenv.serve.protocols.{name}").routes(self)
        handlers = {RollenvError: refused, ClientDisconnect: left}
        app = Starlette(routes=self.hosts + routes, lifespan=self._lifespan, exception_handlers=handlers)  # type: ignore[arg-type]
        return Requests(self._traced(Guard(app, self)))

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.sessions.start()
        self.sandboxes.start()
        if self.settings.hand_over and not is_url(self.settings.hand_over):
            import_file(self.sessions, Path(self.settings.hand_over))
        for begin in self.opening:
            begin()
        try:
            yield
        finally:
            await self.readiness.stop()
            for close in self.closing:
                await close()
            await self.sandboxes.stop()
            await self.sessions.stop()
            await self.sessions.workers.aclose()

    async def _native(self, client: Client, connection: HTTPConnection, socket: WebSocket) -> None:
        await self.native_class(self.sessions, client, socket, self.settings.silence).talk()

    async def _alive(self, request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def _ready(self, request: Request) -> Response:
        """Return whether it works: environments of every family and a sandbox are tried."""
        problems = await self.readiness.problems()
        if not problems:
            return PlainTextResponse("ready\n")
        told = dict.fromkeys(problems, "failed")
        with contextlib.suppress(NotAllowed):  # probes have no token; what an error says is for whoever runs the server
            self.client(request).needs("admin")
            told = problems
        return PlainTextResponse("".join(f"{name}: {text:.500}\n" for name, text in told.items()), 503)

    async def _metrics(self, request: Request) -> Response:
        self.client(request).needs("admin")
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)

    async def _import_session(self, request: Request) -> Response:
        """Go on with a session of a server that stops."""
        self.client(request).needs("admin")
        if self.sessions.draining:
            raise ServerFull("the server is about to stop", retry_after=5.0, draining=True)
        import_session(self.sessions, protocol.unpack(await request.body()))
        return Response(status_code=204)

    async def _health(self, request: Request) -> Response:
        self.client(request).needs("admin")
        return Json(self.health())

    def health(self) -> dict[str, Any]:
        """The state of everything, as plain data."""
        sessions = self.sessions
        told = {
            "status": "draining" if sessions.draining else "healthy",
            "version": __version__,
            "uptime": time.time() - self.started,
            "sessions": {
                "open": len(sessions.by_name),
                "most": sessions.limits.sessions,
                "waiting": sessions.queue.waiting,
            },
            "counts": asdict(sessions.counters),
            "tasks": len(asyncio.all_tasks()),
            "sandboxes": self.sandboxes.report() | {"counts": asdict(self.sandboxes.counters)},
        }
        return told | sessions.health.snapshot(sessions.workers.report())


class Endpoint:
    """A WebSocket for clients that the server knows.

    Args:
        talk: called with (client, the request to connect, the connection) once that stands.
        scope: what the client's token has to be for, if anything.
        subprotocol: chosen where the client offers it.
    """

    def __init__(
        self,
        server: EnvServer,
        talk: Callable[[Client, HTTPConnection, WebSocket], Awaitable[None]],
        *,
        scope: str | None = None,
        subprotocol: str | None = None,
    ):
        self._server, self._talk, self._scope, self._subprotocol = server, talk, scope, subprotocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the request to connect
        connection = HTTPConnection(scope)
        try:
            client = self._server.client(connection)
            if self._scope is not None:
                client.needs(self._scope)
        except (NotAllowed, TooFast) as error:
            await denied(send, status_of(error), str(error))
            return
        offered = self._subprotocol in scope.get("subprotocols", ())
        await send({"type": "websocket.accept", "subprotocol": self._subprotocol if offered else None})
        try:
            async with asyncio.timeout(client.left) as time_left:
                await self._talk(client, connection, scope["extensions"][EXTENSION])
        except TimeoutError:
            if not time_left.expired():
                raise
            await send({"type": "websocket.close", "code": 1008, "reason": "the token has expired"})


async def denied(send: Send, status: int, text: str) -> None:
    """Refuse a WebSocket before it is one."""
    start = {"status": status, "headers": [(b"content-type", b"text/plain; charset=utf-8")]}
    await send({"type": "websocket.http.response.start", **start})
    await send({"type": "websocket.http.response.body", "body": text.encode()})


class Guard:
    """Checks of every request: the name by which the server is called, the page that asks, the size of the body.

    A page on another site can make a browser send requests to this machine, and with a name of its own (DNS rebinding)
    read the answers. So a request has to call the server by a name it knows, and one that comes from a page has to
    come from the server's own.
    """

    def __init__(self, app: ASGIApp, server: EnvServer):
        self._app, self._settings, self._uploads = app, server.settings, server.uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = HTTPConnection(scope).headers
        try:
            problem = self._problem(headers.get("host", ""), headers.get("origin", ""))
        except ValueError as error:
            problem = f"the headers Host and Origin make no sense: {error}"
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

    def _problem(self, host: str, origin: str) -> str:
        name = SANDBOX_HOST.sub("", urlsplit(f"//{host}").hostname or "")
        if self._settings.local and not (is_local(name) or name in self._settings.hosts):
            return f"this server is not {name!r:.80}; whoever runs it can allow the name with --allow-host"
        if origin and urlsplit(origin).netloc != host:
            return f"pages of {origin!r:.80} may not use this server"
        return ""

    @staticmethod
    def _limited(receive: Receive, most: int) -> Receive:
        left, whole = most, False
        end = asyncio.get_running_loop().time() + BODY_SECONDS

        async def limited() -> Any:
            nonlocal left, whole
            if whole:
                return await receive()  # the end of the connection, which takes its time
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                raise UsageError(f"the body did not arrive within {BODY_SECONDS:g} s") from None
            whole = not message.get("more_body", False)
            left -= len(message.get("body", b""))
            if left < 0:
                raise UsageError(f"the body has more than {most} bytes")
            return message

        return limited
