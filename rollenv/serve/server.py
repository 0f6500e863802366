"""The settings of a server and the state that its protocols share."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.needs import extra
from rollenv.core.version import __version__
from rollenv.remote.protocol import NotAllowed, TooFast
from rollenv.rollout.group_reward import GroupReward, group_function
from rollenv.rollout.workers.pool import WorkerPool
from rollenv.serve.auth import Client, TokenTable
from rollenv.serve.logs import audit
from rollenv.serve.monitoring import ReadinessChecks, ServerMetrics
from rollenv.serve.protocols import protocols
from rollenv.serve.quotas import RateLimiter, SessionLimits
from rollenv.serve.responses import status_of
from rollenv.serve.sandboxes import SandboxLimits, SandboxManager
from rollenv.serve.sessions import SessionManager
from rollenv.serve.websocket import EXTENSION, WebSocket

with extra("serve", "rollenv serve"):
    from starlette.requests import HTTPConnection
    from starlette.routing import BaseRoute
    from starlette.types import Receive, Scope, Send

#: The prefix of a host name that stands for a port of a sandbox.
SANDBOX_HOST = re.compile(r"(\d{1,5})-([0-9a-f]{36})\.", re.IGNORECASE)


@dataclass(frozen=True)
class Settings:
    """The settings of a server."""

    host: str = "127.0.0.1"
    protocols: tuple[str, ...] = field(default_factory=protocols)
    hosts: tuple[str, ...] = ()
    """Additional host names that clients may use."""
    tokens: Path | None = None
    tls: tuple[Path, Path] | None = None
    """Files of the certificate and of its key."""
    drain: float = 30.0
    """Seconds that sessions may take to end before the server stops."""
    silence: float = 900.0
    """Seconds without a message after which a connection is closed."""
    group_reward: str = ""
    """``module:function`` that scores groups for the protocol ``ors``."""
    packages: Path | None = None
    """Folder of an index of packages (:mod:`rollenv.serve.catalog`)."""
    traces: bool = False
    """Send traces to an OpenTelemetry collector."""
    sessions: SessionLimits = field(default_factory=SessionLimits)
    sandboxes: SandboxLimits = field(default_factory=SandboxLimits)

    @property
    def local(self) -> bool:
        """True if only this machine can reach the server."""
        return is_local(self.host)


def is_local(host: str) -> bool:
    """Return whether a host is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class EnvServer:
    """The state that all protocols share.

    Raises:
        UsageError: other machines could reach the server without tokens.
    """

    def __init__(self, settings: Settings, workers: WorkerPool):
        self.settings = settings
        self.tokens = TokenTable.read(settings.tokens) if settings.tokens else TokenTable({})
        if not self.tokens and not settings.local:
            raise UsageError(
                f"on {settings.host} other machines can reach the server, so it needs tokens: make one with "
                "`rollenv serve --new-token NAME >> tokens.toml` and pass --tokens tokens.toml"
            )
        limiter = RateLimiter(settings.sessions.each, self.tokens.quotas)
        self.sessions = SessionManager(workers, settings.sessions, limiter)
        self.sandboxes = SandboxManager(settings.sandboxes, limiter)
        self.sessions.holds = self.sandboxes.holds = self.tokens.holds
        self.group_reward: GroupReward | None = None
        if settings.group_reward:
            self.group_reward = GroupReward(group_function(settings.group_reward), settings.sessions.step)
        self.uploads: set[str] = set()
        """Paths whose request bodies are files for sandboxes."""
        self.hosts: list[BaseRoute] = []
        """Routes of host names other than the server's own."""
        self.metrics = ServerMetrics(self.sessions, self.sandboxes)
        self.readiness = ReadinessChecks(self.sessions, self.sandboxes)
        self.started = time.monotonic()
        self.opening: list[Callable[[], None]] = []
        """Called when the server starts."""
        self.closing: list[Callable[[], Awaitable[None]]] = []
        """Called when the server stops."""

    def client(self, connection: HTTPConnection, scope: str | None = None) -> Client:
        """Return the client of a request by the token in the header ``X-API-Key`` or ``Authorization``.

        Args:
            scope: the scope that the token needs, if any.

        Raises:
            NotAllowed: the token is missing, wrong, expired or lacks the scope.
            TooFast: the client has exceeded its quota.
        """
        key = connection.headers.get("x-api-key")
        try:
            client = self.tokens.client(f"Bearer {key}" if key else connection.headers.get("authorization", ""))
        except NotAllowed as error:
            audit("refused", "nobody", path=connection.url.path, why=str(error))
            raise
        self.count_request(connection, client.name)
        if scope is not None:
            client.needs(scope)
        return client

    def count_request(self, connection: HTTPConnection, name: str) -> None:
        """Count a request of a client and store its name for the log."""
        connection.scope.setdefault("state", {})["client"] = name
        self.sessions.limiter.take(name)

    def health(self) -> dict[str, Any]:
        sessions = self.sessions
        own = {
            "status": "draining" if sessions.draining else "healthy",
            "version": __version__,
            "uptime": time.monotonic() - self.started,
            "sessions": {
                "open": len(sessions.by_name),
                "most": sessions.limits.sessions,
                "waiting": sessions.queue.waiting,
            },
            "counts": asdict(sessions.counters),
            "tasks": len(asyncio.all_tasks()),
            "sandboxes": self.sandboxes.report() | {"counts": asdict(self.sandboxes.counters)},
        }
        return own | sessions.health.snapshot(sessions.workers.report())


class WebSocketEndpoint:
    """A WebSocket endpoint with authentication.

    Args:
        talk: called with the client, the opening request and the accepted connection.
        scope: the scope that the client's token needs, if any.
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
        await receive()  # the opening request
        connection = HTTPConnection(scope)
        try:
            client = self._server.client(connection, self._scope)
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
    """Refuse the handshake of a WebSocket."""
    start = {"status": status, "headers": [(b"content-type", b"text/plain; charset=utf-8")]}
    await send({"type": "websocket.http.response.start", **start})
    await send({"type": "websocket.http.response.body", "body": text.encode()})
