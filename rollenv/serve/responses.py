"""HTTP requests and responses of all protocols."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import re
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from rollenv.core.errors import EpisodeOver, RollenvError, UnknownEnv, Unsolvable, UsageError, reads
from rollenv.remote import protocol
from rollenv.remote.protocol import NotAllowed, ServerFull, SessionGone, TooFast
from rollenv.sandbox.errors import (
    BaseSandboxError,
    ContextBusy,
    InvalidArgument,
    NotFound,
    SandboxDied,
    SandboxFileError,
    SandboxPaused,
)

T = TypeVar("T")

#: An escaped surrogate in JSON.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

#: Errors that were raised on purpose: a client gets their texts.
EXPECTED = (RollenvError, BaseSandboxError)

#: HTTP statuses of errors, subclasses first.
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (NotAllowed, 401),
    (TooFast, 429),
    (ServerFull, 503),
    (SessionGone, 404),
    (SandboxDied, 404),
    (NotFound, 404),
    (ContextBusy, 409),
    (SandboxPaused, 409),
    (SandboxFileError, 400),
    (UnknownEnv, 404),
    (EpisodeOver, 409),
    (Unsolvable, 409),
    (UsageError, 400),
    (InvalidArgument, 400),
)


def status_of(error: Exception) -> int:
    """Return the HTTP status for an error."""
    return next((status for cls, status in _STATUSES if isinstance(error, cls)), 500)


def retry_after(error: Exception) -> dict[str, str]:
    """Return the header ``Retry-After`` if the error has one."""
    if not isinstance(error, ServerFull):
        return {}
    return {"Retry-After": str(max(1, math.ceil(error.retry_after)))}


async def refused(request: Request, error: Exception) -> Response:
    """Answer an error; the default of all protocols."""
    return Json({"detail": str(error)}, status_of(error), retry_after(error))


async def left(request: Request, error: ClientDisconnect) -> Response:
    """Answer a client that has disconnected."""
    return Response(status_code=499)


async def body_of(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request."""
    with reads("the body is not JSON"):
        body = (await request.body()).decode()
        data = json.loads(body or "{}")
        if _SURROGATE.search(body):
            json.dumps(data, ensure_ascii=False).encode()  # raises for a lone surrogate
    if not isinstance(data, dict):
        raise UsageError("the body is not a JSON object")
    return data


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def validated(kind: Any, value: Any) -> Any:
    """Validate a client's value against a model or another type of pydantic."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise UsageError(wrong_fields(error)) from error


def wrong_fields(error: ValidationError) -> str:
    """Describe the invalid fields."""
    each = [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors(include_input=False)]
    return "; ".join(f"{where}: {what}" if where else what for where, what in each)


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """Await ``work`` and cancel it if the client disconnects. The request's body must have been read.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Streamed(Response):
    """A streaming response. The generator is closed as soon as the client disconnects.

    Args:
        pieces: the pieces of the body; if it raises one of :data:`EXPECTED`, the body stays incomplete.
        held: a context manager that is entered now and exited at the end.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        media_type: str,
        held: contextlib.AbstractContextManager[Any],
        status: int = 200,
    ):
        self._pieces, self._first, self._held = pieces, b"", contextlib.ExitStack()
        self._held.enter_context(held)
        self.media_type, self.status_code, self.background = media_type, status, None
        self.init_headers()

    async def begin(self) -> None:
        """Generate the first piece, so that an error before it becomes a response of its own."""
        try:
            self._first = await anext(self._pieces, b"")
        except BaseException:
            self._held.close()
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientDisconnect, *EXPECTED):
                await while_connected(receive, self._send(send))
        finally:
            await self._pieces.aclose()
            self._held.close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if self._first:
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Json(JSONResponse):
    """A JSON response with values of environments and programs: arrays become lists.

    It is ASCII, because texts may have lone surrogates, which UTF-8 cannot encode.
    """

    def render(self, content: Any) -> bytes:
        return json_of(content).encode()


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else protocol.plain(value)


_ENCODER = json.JSONEncoder(default=_plain, skipkeys=True, separators=(",", ":"))


def without_data(info: dict[str, Any]) -> dict[str, Any]:
    """Return an info that names its pictures by their hashes, for readers that get them elsewhere."""
    if not info.get("images"):
        return info
    return {**info, "images": [image.as_json(data=False) for image in info["images"]]}


def json_of(content: Any) -> str:
    """Encode values of environments as JSON; keys that JSON does not support are skipped."""
    return _ENCODER.encode(content)
