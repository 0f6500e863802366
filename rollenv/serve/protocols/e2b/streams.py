"""Answers that come piece by piece."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rollenv.core import RollenvError
from rollenv.sandbox import Sandbox

#: Events that wait for a client, and seconds that what makes them waits for it.
_WAITING, _PATIENCE = 32, 300.0


class TooSlow(RollenvError):
    """The client did not read in time."""


class Feed:
    """Events from threads for one client, which may read slower than they come: then what makes them waits."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._loop = asyncio.get_running_loop()
        self._room = threading.Semaphore(_WAITING)
        self._events: deque[Any] = deque()
        self._there = asyncio.Event()
        self.closed = False

    def put(self, event: Any) -> None:
        """Add an event, from a thread. Blocks while too many wait, unless that takes long or the sandbox ends."""
        end = time.monotonic() + _PATIENCE
        while not self.closed:
            if self._room.acquire(timeout=1.0):
                self._events.append(event)
                break
            self.closed = time.monotonic() > end or not self._sandbox.alive
        self._wake()

    def finish(self, event: Any) -> None:
        """Add the last event; it always has room."""
        self._events.append(event)
        self._wake()

    def close(self) -> None:
        """Take nothing more."""
        self.closed = True
        self._room.release(_WAITING)

    async def get(self, seconds: float) -> Any:
        """The next event.

        Raises:
            TimeoutError: there was none.
            TooSlow: some were lost.
        """
        async with asyncio.timeout(seconds):
            while not self._events:
                if self.closed:
                    raise TooSlow("the client did not read what came, and some of it is lost")
                self._there.clear()
                await self._there.wait()
        self._room.release()
        return self._events.popleft()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self._loop.call_soon_threadsafe(self._there.set)


class Streamed(Response):
    """A response of pieces. The generator is closed as soon as the client has gone.

    Args:
        pieces: of the body; when it raises :class:`RollenvError`, the connection ends without an end of the body.
        held: what is closed at the end.
    """

    def __init__(self, pieces: AsyncGenerator[bytes, None], media_type: str, held: contextlib.ExitStack):
        self._pieces, self._held = pieces, held
        self.media_type, self.status_code, self.background = media_type, 200, None
        self.init_headers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            results = await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._pieces.aclose()
            self._held.close()
        if isinstance(results[0], Exception) and not isinstance(results[0], RollenvError):
            raise results[0]

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def seconds_of(request: Request, name: str, usual: float) -> float:
    """A header with a time.

    Args:
        usual: seconds without it, or where it makes no sense.
    """
    text = request.headers.get(name, "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 and int(text) else usual
