"""Shared parts of the protocol: clients, their sandboxes, values, answers in pieces, errors, and Connect's messages.

A stream of Connect (https://connectrpc.com/docs/protocol, with JSON) is a row of envelopes: a byte of flags, the length
in four bytes, and a message. The last one of an answer has the flag 2 and says whether something went wrong.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import hmac
import json
import posixpath
import re
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, StringConstraints
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from rollenv.core import RollenvError, UsageError
from rollenv.remote.protocol import NotAllowed, SessionGone, TooFast
from rollenv.sandbox import Sandbox
from rollenv.sandbox.errors import (
    FileRefused,
    FileThere,
    NotFound,
    SandboxDied,
    SandboxFileError,
    SandboxPaused,
    SandboxTimeout,
)
from rollenv.serve.auth import Client
from rollenv.serve.logs import audit
from rollenv.serve.responses import Json, Streamed, retry_after, status_of, validated
from rollenv.serve.sandboxes import SandboxSession
from rollenv.serve.server import EnvServer, is_local

if TYPE_CHECKING:
    from rollenv.sandbox.filesystem import WatchHandle
    from rollenv.serve.protocols.e2b.control import Snapshots
    from rollenv.serve.protocols.e2b.processes import Running


PREFIX = "/e2b"
#: Contents of files; the client's signed URLs leave out the path of its sandbox URL.
FILES = (f"{PREFIX}/files", "/files")
#: The version of E2B's own server in sandboxes whose abilities these have; clients look at it before they ask.
#: From 0.6.2 on files have metadata, and these have none.
VERSION = "0.6.1"
#: The home of code, which leads to the scratch folder.
HOME = "/home/user"
#: Requests to one sandbox at the same time, those that stream among them.
_REQUESTS = 128
#: A host that is an address and no name.
_ADDRESS = re.compile(r"[\d.]+|.*:.*")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: Events that wait for a client, and seconds that what makes them waits for it.
_WAITING, _PATIENCE = 32, 300.0

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


def _at_home(path: str) -> str:
    """An absolute path: relative ones begin in the home of code."""
    if path == "~" or path.startswith("~/"):
        path = path[2:]
    return posixpath.normpath(posixpath.join(HOME, path))


def _variables(env: dict[str, str]) -> dict[str, str]:
    for name, text in env.items():
        if not name or "=" in name or b"\0" in (name + text).encode():  # what cannot be encoded is a ValueError as well
            raise ValueError(f"{name!r:.80} is no variable, or has a value that is none")
    return env


Path = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$"), AfterValidator(_at_home)]
Variables = Annotated[dict[str, str], AfterValidator(_variables)]


class Kept:
    """A sandbox of this protocol."""

    def __init__(self) -> None:
        self.template, self.env = "base", dict[str, str]()
        self.ports: set[int] = set()
        """Those that clients have asked for."""
        self.paused = False
        self.requests = 0
        self.turns: dict[str, asyncio.Lock] = {}
        """For contexts: cells of one wait for each other."""
        self.processes: dict[int, Running] = {}
        self.watches: dict[str, WatchHandle] = {}
        self.uploads = asyncio.Semaphore(2)
        """Files that come in; the server holds each until it is whole."""
        self.inputs = asyncio.Semaphore(4)
        """Writes to processes, which may not read, so that they leave room for other calls."""


class E2BService:
    """The clients of the protocol and their sandboxes."""

    def __init__(self, server: EnvServer):
        self.server, self.sandboxes = server, server.sandboxes
        self.snapshots: Snapshots
        self._secret = secrets.token_bytes(32)
        self._kept: weakref.WeakKeyDictionary[SandboxSession, Kept] = weakref.WeakKeyDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()

    def client(self, request: HTTPConnection) -> Client:
        """Return the client that manages sandboxes."""
        client = self.server.client(request)
        client.needs("sandboxes")
        return client

    def key_of(self, name: str) -> str:
        """The key of a sandbox, with which all but its end and its time can be asked for."""
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()

    def keys(self, box: SandboxSession, request: Request) -> dict[str, Any]:
        """Return the keys that a client needs, and the domain of the sandbox's ports.

        Some calls carry one of the two tokens, others the other one. Names below ``localhost`` are this machine's; an
        address has none.
        """
        key, host = self.key_of(box.name), request.headers.get("host", "")
        address = urlsplit(f"//{host}")
        domain = None if _ADDRESS.fullmatch(address.hostname or "") else host
        if is_local(address.hostname or ""):
            domain = f"localhost:{address.port or 80}"
        told: dict[str, Any] = {"sandboxID": box.name, "templateID": self.kept(box).template, "clientID": "rollenv"}
        told |= {"envdVersion": VERSION, "domain": domain}
        return told | {"envdAccessToken": key, "trafficAccessToken": key}

    def box(self, request: HTTPConnection, name: str = "", key: str | None = None) -> SandboxSession:
        """The sandbox that a request is for: the one of that name, of its header, or that signed its URL.

        Args:
            key: of that one; by default the header's.

        Raises:
            NotAllowed: the client may not use it.
            SessionGone: it has ended, or is paused.
        """
        headers = request.headers
        name = name or headers.get("e2b-sandbox-id", "")
        key = key or headers.get("x-access-token") or headers.get("e2b-traffic-access-token")
        if not name and "signature" in request.query_params and request.url.path in FILES:
            name, key = self._signed(request)
        if key and self.server.tokens:
            found = self.sandboxes.by_name.get(name)
            if found is None:
                raise SessionGone("it was ended, its time is over, or the server was restarted")
            if not hmac.compare_digest(key.encode(), self.key_of(name).encode()):
                audit("refused", "nobody", path=request.url.path, why="another sandbox's key")
                raise NotAllowed("this is not the key of the sandbox")
            self.server.asks(request, found.owner)
            owner = found.owner
        else:
            owner = self.client(request).name
        box = self.sandboxes.get(name, owner)
        if self.kept(box).paused:
            raise SessionGone("the sandbox is paused")
        return box

    def _signed(self, request: HTTPConnection) -> tuple[str, str]:
        """The sandbox whose key signed the URL of a file, and the key. The URL does not name it."""
        asked = request.query_params
        path, user, ends = (asked.get(name, "") for name in ("path", "username", "signature_expiration"))
        if ends and not (ends.isascii() and ends.isdecimal() and int(ends[:15]) > time.time()):
            raise NotAllowed("the time of the signed URL is over")
        operation = "read" if request.scope["method"] == "GET" else "write"
        for name in self.sandboxes.by_name:
            key = self.key_of(name)
            text = ":".join([path, operation, user, key, *filter(None, [ends])])
            digest = base64.b64encode(hashlib.sha256(text.encode("utf-8", "replace")).digest()).rstrip(b"=")
            if hmac.compare_digest(b"v1_" + digest, asked["signature"].encode("utf-8", "replace")):
                return name, key
        raise NotAllowed("the URL was not signed for this file with the key of a sandbox that runs")

    def kept(self, box: SandboxSession) -> Kept:
        """Return what is kept of a sandbox."""
        return self._kept.setdefault(box, Kept())

    async def run(self, box: SandboxSession, work: Callable[[Sandbox], T], also: asyncio.Semaphore | None = None) -> T:
        """Do something with a sandbox, in a thread, as soon as there is room. It keeps its place to its end.

        Args:
            also: something else that has to have room.

        Raises:
            SessionGone: it has ended.
            TooFast: too much is being done already.
        """
        with self.request(box):
            async with contextlib.AsyncExitStack() as waiting:
                if also is not None:
                    await waiting.enter_async_context(also)
                await waiting.enter_async_context(box.use())
                begun = waiting.pop_all()

            async def whole() -> T:
                async with begun:
                    return await asyncio.to_thread(work, box.sandbox.sync)

            return await asyncio.shield(self.spawn(whole()))

    @contextlib.contextmanager
    def request(self, box: SandboxSession) -> Iterator[None]:
        """Count a request while it is answered, which keeps the sandbox from being idle."""
        kept = self.kept(box)
        if kept.requests >= _REQUESTS:
            raise TooFast(f"{_REQUESTS} requests to this sandbox are being answered", retry_after=1.0)
        kept.requests += 1
        try:
            with box.hold():
                yield
        finally:
            kept.requests -= 1

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do something that goes on when the request for it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it was told

    def route(self, method: str, path: str, handler: Handler, *, inside: bool = False) -> Route:
        """A route whose errors are told as E2B tells them.

        Args:
            path: below :data:`PREFIX`, or one of :data:`FILES`.
            inside: whether it is asked of a sandbox, and not of the service. A sandbox that does not run has no server
                of its own: 502.
        """

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except (RollenvError, HTTPException) as problem:
                # a form that is none
                error = problem if isinstance(problem, RollenvError) else UsageError(problem.detail)
            status, text = status_of(error), str(error)
            if inside and isinstance(error, SessionGone | SandboxDied | SandboxPaused):
                status, text = 502, f"The sandbox was not found: {error}"  # clients look for these words
            elif getattr(error, "errno", None) in _NO_ROOM:
                status = 507
            return Json({"code": status, "message": text}, status, retry_after(error))

        return Route(path if path in FILES else PREFIX + path, answer, methods=[method])


# -- answers that come piece by piece ----------------------------------------------------------------------------------


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
        """The next event."""
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


Message = dict[str, Any]

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


def unary(
    service: E2BService, name: str, model: type[BaseModel], method: Callable[[SandboxSession, Any], Awaitable[Message]]
) -> Route:
    """A method with one message, of the model, and one answer."""

    async def answer(request: Request) -> Response:
        box = service.box(request)
        if (refused := _refused(request, "application/json")) is not None:
            return refused
        try:
            asked = validated(model, _message(await request.body()))
            async with asyncio.timeout(_limit(request)):
                return Json(await method(box, asked))
        except (RollenvError, TimeoutError) as error:
            told = _failure(error)
            return Json(told, _STATUSES.get(told["code"], 500))

    return service.route("POST", f"/{name}", answer, inside=True)


def server_stream(
    service: E2BService,
    name: str,
    model: type[BaseModel],
    method: Callable[[SandboxSession, Any, Request], AsyncGenerator[Message, None]],
) -> Route:
    """A method with one message, of the model, and many answers."""

    async def answers(box: SandboxSession, request: Request) -> AsyncGenerator[bytes, None]:
        last: Message = {}
        try:
            message = await anext(aiter(_envelopes(request)), None)
            if message is None:
                raise UsageError("the request has no message")
            async with contextlib.aclosing(method(box, validated(model, message), request)) as events:
                async for event in events:
                    yield _envelope(event)
        except (RollenvError, TimeoutError) as error:
            last = {"error": _failure(error)}
        yield _envelope(last, 2)

    async def answer(request: Request) -> Response:
        box = service.box(request)
        if (refused := _refused(request, _MEDIA_TYPE)) is not None:
            return refused
        await request.body()  # what comes from then on is that the client has gone
        return Streamed(answers(box, request), _MEDIA_TYPE, service.request(box))

    return service.route("POST", f"/{name}", answer, inside=True)


def client_stream(
    service: E2BService,
    name: str,
    model: type[BaseModel],
    method: Callable[[SandboxSession, AsyncIterator[Any]], Awaitable[Message]],
) -> Route:
    """A method with many messages, of the model, and one answer."""

    async def answer(request: Request) -> Response:
        box = service.box(request)
        if (refused := _refused(request, _MEDIA_TYPE)) is not None:
            return refused
        try:
            async with asyncio.timeout(_limit(request)):
                asked = (validated(model, message) async for message in _envelopes(request))
                body = _envelope(await method(box, asked)) + _envelope({}, 2)
        except (RollenvError, TimeoutError) as error:
            body = _envelope({"error": _failure(error)}, 2)
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
    ping = max(1.0, _number_of(request, "keepalive-ping-interval") or _PING)
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
    return _number_of(request, "connect-timeout-ms") / 1e3 or None


def _limit(request: Request) -> float:
    return min(timeout_of(request) or _SECONDS, _LONGEST)


def _number_of(request: Request, name: str) -> int:
    """A header with a whole number; 0 if it is not there, or makes no sense."""
    text = request.headers.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _failure(error: Exception) -> Message:
    code = next((code for cls, code in _CODES if isinstance(error, cls)), "internal")
    return {"code": code, "message": str(error) or "it took too long"}


def _envelope(message: Message, flags: int = 0) -> bytes:
    data = json.dumps(message, separators=(",", ":")).encode()
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


async def _envelopes(request: Request) -> AsyncIterator[Message]:
    """The messages of a request, as they come."""
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


def _message(data: bytes) -> Message:
    """A message; null stands for a field that is left out."""
    try:
        message = json.loads(data or b"{}", object_hook=lambda each: {k: v for k, v in each.items() if v is not None})
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
