"""An HTTP server for an app, in a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.needs import extra

with extra("serve", "A gateway"):
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

#: Timeout in seconds for the head of a request, from its first byte or the start of the connection.
HEAD = 10.0

# uvicorn logs these for every refused WebSocket, every response that ends with its sandbox, and, with a traceback,
# every text that is not UTF-8.
_USUAL = ("without completing handshake", "without completing response", "Invalid UTF-8 sequence")
logging.getLogger("uvicorn.error").addFilter(lambda record: not any(text in record.getMessage() for text in _USUAL))


class HttpServer:
    """Serves an app until it is stopped."""

    def __init__(self, app: Any, host: str, port: int):
        self.app, self.host, self.port = app, host, port
        self._listening: socket.socket | None = None
        self._server: Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Serve in the running event loop; after a change of the loop, with the same port."""
        loop = asyncio.get_running_loop()
        if self._serving is not None and self._loop is loop and not self._serving.done():
            return
        if self._listening is None:
            try:
                self._listening = socket.create_server((self.host, self.port), backlog=1024)
            except (OSError, OverflowError) as error:
                why = f"{getattr(error, 'strerror', error)}".partition(" (")[0].rstrip(".")
                raise UsageError(
                    f"cannot listen on {self.host}:{self.port}: {why}; name another port or host"
                ) from error
            # Connections inherit the option; asyncio sets it for sockets with proto=TCP only, which this one is not.
            # Without it the body of an answer waits 40 ms for the acknowledgement of its head.
            self._listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.port = self._listening.getsockname()[1]
        config = uvicorn.Config(self.app, http=Punctual, lifespan="off", log_config=None, access_log=False)
        config.timeout_keep_alive, config.timeout_graceful_shutdown = 60, 1
        self._loop, self._server = loop, Uvicorn(config)
        self._serving = loop.create_task(self._server.serve(sockets=[self._listening.dup()]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        """End all connections."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._server = self._serving = None

    def close(self) -> None:
        """Free the port."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None


class Uvicorn(uvicorn.Server):
    """A server that handles no signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Punctual(H11Protocol):
    """Refuses requests whose head takes too long: many slow ones would block other clients."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._due = self.loop.call_later(HEAD, self._refuse)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._due is None:
            self._due = self.loop.call_later(HEAD, self._refuse)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP; if the app has it already, for the app its client has left."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # its answer has begun
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _refuse(self) -> None:
        self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        self.transport.close()
