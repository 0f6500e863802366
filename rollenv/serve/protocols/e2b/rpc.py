"""The Connect protocol with JSON, as E2B's clients speak it to the server of a sandbox.

See https://connectrpc.com/docs/protocol. A stream is a row of envelopes: a byte of flags, the length in four bytes, and
a message. The last one of an answer has the flag 2 and says whether something went wrong.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rollenv.core import RollenvError, UsageError
from rollenv.remote.protocol import SessionGone, TooFast
from rollenv.sandbox.errors import (
    FileRefused,
    FileThere,
    NotFound,
    SandboxDied,
    SandboxFileError,
    SandboxPaused,
    SandboxTimeout,
)
from rollenv.serve.protocols.e2b.base import E2BService
from rollenv.serve.protocols.e2b.streams import Feed, Streamed, TooSlow, seconds_of
from rollenv.serve.responses import Json
from rollenv.serve.sandboxes import SandboxSession

Message = dict[str, Any]
#: Answers a message.
Unary = Callable[[SandboxSession, Message], Awaitable[Message]]
#: Answers a message with more than one.
Stream = Callable[[SandboxSession, Message, Request], AsyncGenerator[Message, None]]

#: Seconds for an answer, and between two signs of life in a stream, where a client says nothing of it.
_SECONDS, _PING = 60.0, 50.0
#: Seconds for an answer at most.
_LONGEST = 600.0
#: Bytes of a message.
_LARGEST = 1 << 22
_MEDIA_TYPE = "application/connect+json"

#: Codes of errors, the narrower classes first.
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


def unary(service: E2BService, name: str, method: Unary) -> Route:
    """A method with one answer.

    Args:
        service: whose sandboxes it is for.
    """

    async def answer(request: Request) -> Response:
        box = service.box(request)
        if (refused := _refused(request, "application/json")) is not None:
            return refused
        try:
            message = _message(await request.body())
            async with asyncio.timeout(_limit(request)):
                return Json(await method(box, message))
        except (RollenvError, TimeoutError) as error:
            told = failure(error)
            return Json(told, _STATUSES.get(told["code"], 500))

    return service.route("POST", f"/{name}", answer, inside=True)


def server_stream(service: E2BService, name: str, method: Stream) -> Route:
    """A method with many answers.

    Args:
        service: whose sandboxes it is for.
    """

    async def answers(box: SandboxSession, request: Request) -> AsyncGenerator[bytes, None]:
        last: Message = {}
        try:
            message = await anext(aiter(envelopes(request)), None)
            if message is None:
                raise UsageError("the request has no message")
            async with contextlib.aclosing(method(box, message, request)) as events:
                async for event in events:
                    yield envelope(event)
        except (RollenvError, TimeoutError) as error:
            last = {"error": failure(error)}
        yield envelope(last, 2)

    async def answer(request: Request) -> Response:
        box = service.box(request)
        if (refused := _refused(request, _MEDIA_TYPE)) is not None:
            return refused
        await request.body()  # what comes from then on is that the client has gone
        return Streamed(answers(box, request), _MEDIA_TYPE, service.held(box))

    return service.route("POST", f"/{name}", answer, inside=True)


def client_stream(
    service: E2BService, name: str, method: Callable[[SandboxSession, AsyncIterator[Message]], Awaitable[Message]]
) -> Route:
    """A method that takes many messages.

    Args:
        service: whose sandboxes it is for.
    """

    async def answer(request: Request) -> Response:
        box = service.box(request)
        if (refused := _refused(request, _MEDIA_TYPE)) is not None:
            return refused
        try:
            async with asyncio.timeout(_limit(request)):
                body = envelope(await method(box, envelopes(request))) + envelope({}, 2)
        except (RollenvError, TimeoutError) as error:
            body = envelope({"error": failure(error)}, 2)
        return Response(body, media_type=_MEDIA_TYPE)

    return service.route("POST", f"/{name}", answer, inside=True)


async def followed(feed: Feed, request: Request, seconds: float | None) -> AsyncGenerator[Any, None]:
    """The events of a feed until it says None; and None, so that the client hears something, after silence.

    Args:
        request: that may say how long silence may be.
        seconds: until the stream ends; None for no end.

    Raises:
        TimeoutError: the time is over.
        TooSlow: the client did not read in time.
    """
    ping = max(1.0, seconds_of(request, "keepalive-ping-interval", _PING))
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
        if event is None:
            return
        yield event


def timeout_of(request: Request) -> float | None:
    """Seconds that the client gives a stream; None for no limit."""
    return seconds_of(request, "connect-timeout-ms", 0.0) / 1e3 or None


def _limit(request: Request) -> float:
    return min(timeout_of(request) or _SECONDS, _LONGEST)


def failure(error: Exception) -> Message:
    """An error of Connect."""
    code = next((code for cls, code in _CODES if isinstance(error, cls)), "internal")
    return {"code": code, "message": str(error) or "it took too long"}


def envelope(message: Message, flags: int = 0) -> bytes:
    """A message in a stream.

    Args:
        flags: 2 for the last one.
    """
    data = json.dumps(message, separators=(",", ":")).encode()
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


async def envelopes(request: Request) -> AsyncIterator[Message]:
    """The messages of a request, as they come.

    Raises:
        UsageError: they are none.
    """
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
        raise UsageError("the last message is cut")


def bytes_of(value: Any, what: str) -> bytes:
    """Bytes in a message.

    Args:
        value: their base64.
        what: they are, for the message of an error.

    Raises:
        UsageError: it is none.
    """
    if isinstance(value, str):
        text = value.translate({ord("-"): "+", ord("_"): "/"}).rstrip("=")
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    raise UsageError(f"{what} is bytes in base64")


def number_of(value: Any, what: str, most: int) -> int:
    """A number in a message; JSON may have it as a text.

    Args:
        what: it is, for the message of an error.

    Raises:
        UsageError: it is none.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise UsageError(f"{what} is a number from 0 to {most}, not {value!r:.40}")
    return value


def object_of(value: Any, what: str) -> Message:
    """A message in a message; empty if it is missing.

    Args:
        what: it is, for the message of an error.

    Raises:
        UsageError: it is none.
    """
    if value is not None and not isinstance(value, dict):
        raise UsageError(f"{what} is an object")
    return value or {}


def _message(data: bytes) -> Message:
    try:
        message = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise UsageError("the message is not an object")
    return message


def _refused(request: Request, media_type: str) -> Response | None:
    """A refusal of what is not JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == media_type:
        return None
    return Response(f"only {media_type} is understood here\n", 415, {"Accept-Post": media_type})
