"""Messages of Connect, and streams of events from threads to a client.

A stream of Connect (https://connectrpc.com/docs/protocol, with JSON) is a sequence of envelopes: a byte of flags, the
length in four bytes, and a message. The last envelope of an answer has the flag 2 and contains the error, if any.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rollenv.core.errors import RollenvError, UsageError
from rollenv.plugins.protocols.e2b.service import E2BService
from rollenv.remote.protocol import SessionGone, TooFast
from rollenv.sandbox import Sandbox
from rollenv.sandbox.errors import (
    FileRefused,
    FileThere,
    InvalidArgument,
    NotFound,
    SandboxDied,
    SandboxFileError,
    SandboxPaused,
    SandboxTimeout,
)
from rollenv.serve.responses import EXPECTED, Json, Streamed, validated
from rollenv.serve.sandboxes import SandboxSession

#: Maximum events that wait for a client, and maximum seconds that their producer waits for it.
_WAITING, _PATIENCE = 32, 300.0


class TooSlow(RollenvError):
    """The client did not read in time."""


class Feed:
    """Events from threads for one client. If it reads too slowly, the producer waits."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._loop = asyncio.get_running_loop()
        self._room = threading.Semaphore(_WAITING)
        self._events: deque[Any] = deque()
        self._available = asyncio.Event()
        self.closed = False

    def put(self, event: Any) -> None:
        """Add an event from a thread. Blocks while too many wait, until a timeout or the end of the sandbox."""
        end = time.monotonic() + _PATIENCE
        while not self.closed:
            if self._room.acquire(timeout=1.0):
                self._events.append(event)
                break
            self.closed = time.monotonic() > end or not self._sandbox.alive
        self._wake()

    def finish(self, event: Any) -> None:
        """Add the last event, which never blocks."""
        self._events.append(event)
        self._wake()

    def close(self) -> None:
        self.closed = True
        self._room.release(_WAITING)

    async def get(self, seconds: float) -> Any:
        async with asyncio.timeout(seconds):
            while not self._events:
                if self.closed:
                    raise TooSlow("the client read too slowly, and some events are lost")
                self._available.clear()
                await self._available.wait()
        self._room.release()
        return self._events.popleft()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self._loop.call_soon_threadsafe(self._available.set)


Message = dict[str, Any]

#: Default timeout of an answer, and default interval of keepalives in a stream, in seconds.
_SECONDS, _PING = 60.0, 50.0
#: Maximum timeout of an answer in seconds.
_LONGEST = 600.0
#: Maximum bytes of a message.
_LARGEST = 1 << 22
_STREAM = "application/connect+json"

#: Codes of errors, subclasses first.
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (TooFast, "resource_exhausted"),
    (TooSlow, "resource_exhausted"),
    (SandboxTimeout, "deadline_exceeded"),
    (TimeoutError, "deadline_exceeded"),
    (SessionGone, "unavailable"),
    (SandboxDied, "unavailable"),
    (SandboxPaused, "unavailable"),
    (NotFound, "not_found"),
    (FileThere, "already_exists"),
    (FileRefused, "permission_denied"),
    (SandboxFileError, "invalid_argument"),
    (UsageError, "invalid_argument"),
    (InvalidArgument, "invalid_argument"),
)
_STATUSES = {
    "resource_exhausted": 429,
    "deadline_exceeded": 504,
    "unavailable": 503,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "invalid_argument": 400,
}


def unary(
    service: E2BService, name: str, model: type[BaseModel], method: Callable[[SandboxSession, Any], Awaitable[Message]]
) -> Route:
    """Build the route of a method with one message and one answer."""

    async def answer(session: SandboxSession, request: Request) -> Response:
        try:
            params = validated(model, _message(await request.body()))
            async with asyncio.timeout(_limit(request)):
                return Json(await method(session, params))
        except (*EXPECTED, TimeoutError) as error:
            failure = _failure(error)
            return Json(failure, _STATUSES.get(failure["code"], 500))

    return _route(service, name, "application/json", answer)


def server_stream(
    service: E2BService,
    name: str,
    model: type[BaseModel],
    method: Callable[[SandboxSession, Any, Request], AsyncGenerator[Message, None]],
) -> Route:
    """Build the route of a method with one message and many answers."""

    async def answers(session: SandboxSession, request: Request) -> AsyncGenerator[bytes, None]:
        last: Message = {}
        try:
            message = await anext(aiter(_envelopes(request)), None)
            if message is None:
                raise UsageError("the request has no message")
            async with contextlib.aclosing(method(session, validated(model, message), request)) as events:
                async for event in events:
                    yield _envelope(event)
        except (*EXPECTED, TimeoutError) as error:
            last = {"error": _failure(error)}
        yield _envelope(last, 2)

    async def answer(session: SandboxSession, request: Request) -> Response:
        await request.body()  # after this, the only message is a disconnect
        return Streamed(answers(session, request), _STREAM, service.request(session))

    return _route(service, name, _STREAM, answer)


def client_stream(
    service: E2BService,
    name: str,
    model: type[BaseModel],
    method: Callable[[SandboxSession, AsyncIterator[Any]], Awaitable[Message]],
) -> Route:
    """Build the route of a method with many messages and one answer."""

    async def answer(session: SandboxSession, request: Request) -> Response:
        try:
            async with asyncio.timeout(_limit(request)):
                messages = (validated(model, message) async for message in _envelopes(request))
                body = _envelope(await method(session, messages)) + _envelope({}, 2)
        except (*EXPECTED, TimeoutError) as error:
            body = _envelope({"error": _failure(error)}, 2)
        return Response(body, media_type=_STREAM)

    return _route(service, name, _STREAM, answer)


def _route(
    service: E2BService, name: str, media_type: str, answer: Callable[[SandboxSession, Request], Awaitable[Response]]
) -> Route:
    """Build a route for requests of one media type to a sandbox."""

    async def handle(request: Request) -> Response:
        session = service.session(request)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != media_type:
            return Response(f"only {media_type} is understood here\n", 415, {"Accept-Post": media_type})
        return await answer(session, request)

    return service.route("POST", f"/{name}", handle, inside=True)


async def followed(feed: Feed, ping: float, seconds: float | None = None) -> AsyncGenerator[Any, None]:
    """Iterate over the events of a feed; after silence yield None, for a keepalive.

    Args:
        ping: seconds of silence before a keepalive.
        seconds: timeout of the stream; None for no limit.

    Raises:
        TimeoutError: the timeout has passed.
        TooSlow: the client did not read in time.
    """
    now = asyncio.get_running_loop().time
    end = now() + seconds if seconds else float("inf")
    while True:
        try:
            event = await feed.get(max(0.0, min(ping, end - now())))
        except TimeoutError:
            if now() >= end:
                raise TimeoutError("the time for this stream is over") from None
            yield None
            continue
        yield event


def ping_of(request: Request) -> float:
    """Return the interval of keepalives in seconds that a client requests."""
    return max(1.0, _number_of(request, "keepalive-ping-interval") or _PING)


def timeout_of(request: Request) -> float | None:
    """Return the timeout of a stream in seconds that a client requests; None for no limit."""
    return _number_of(request, "connect-timeout-ms") / 1e3 or None


def _limit(request: Request) -> float:
    return min(timeout_of(request) or _SECONDS, _LONGEST)


def _number_of(request: Request, name: str) -> int:
    """Parse a header with a whole number; 0 if it is absent or malformed."""
    text = request.headers.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _failure(error: Exception) -> Message:
    code = next((code for cls, code in _CODES if isinstance(error, cls)), "internal")
    return {"code": code, "message": str(error) or "it took too long"}


def _envelope(message: Message, flags: int = 0) -> bytes:
    data = json.dumps(message, separators=(",", ":")).encode()
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


async def _envelopes(request: Request) -> AsyncIterator[Message]:
    """Iterate over the messages of a request."""
    buffer = bytearray()
    async for piece in request.stream():
        buffer += piece
        while len(buffer) >= 5:
            size = int.from_bytes(buffer[1:5], "big")
            if buffer[0] or size > _LARGEST:
                raise UsageError(f"messages are not compressed, and have at most {_LARGEST} bytes")
            if len(buffer) < 5 + size:
                break
            message = _message(bytes(buffer[5 : 5 + size]))
            del buffer[: 5 + size]
            yield message
    if buffer:
        raise UsageError("the last message is incomplete")


def _message(data: bytes) -> Message:
    """Parse a message; a field that is null counts as absent."""
    try:
        message = json.loads(data or b"{}", object_hook=lambda each: {k: v for k, v in each.items() if v is not None})
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise UsageError("the message is not an object")
    return message
