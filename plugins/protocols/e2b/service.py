"""The clients of the protocol, their sandboxes, and routes with E2B's error responses."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import hmac
import posixpath
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, StringConstraints
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from rollenv.core.errors import UsageError
from rollenv.remote.protocol import NotAllowed, SessionGone, TooFast
from rollenv.sandbox import Sandbox
from rollenv.sandbox.errors import SandboxDied, SandboxPaused
from rollenv.serve.auth import Client
from rollenv.serve.logs import audit
from rollenv.serve.responses import EXPECTED, Json, retry_after, status_of
from rollenv.serve.sandboxes import PerSandbox, SandboxSession
from rollenv.serve.server import EnvServer, is_local

PREFIX = "/e2b"
#: Paths of the contents of files; the client's signed URLs lack the path of its sandbox URL.
FILES = (f"{PREFIX}/files", "/files")
#: The version of E2B's server in sandboxes that this is compatible with; clients check it. From 0.6.2 on files have
#: metadata, which is not supported here.
VERSION = "0.6.1"
#: The home folder of code, a link to the scratch folder.
HOME = "/home/user"
#: Maximum concurrent requests to one sandbox, including streams.
_REQUESTS = 128
#: A host that is an address, not a name.
_ADDRESS = re.compile(r"[\d.]+|.*:.*")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]


def _at_home(path: str) -> str:
    """Make a path absolute; relative ones start in the home folder of code."""
    if path == "~" or path.startswith("~/"):
        path = path[2:]
    return posixpath.normpath(posixpath.join(HOME, path))


def _variables(env: dict[str, str]) -> dict[str, str]:
    for name, text in env.items():
        if not name or "=" in name or b"\0" in (name + text).encode():  # encode() also raises ValueError
            raise ValueError(f"{name!r:.80} is not a valid variable, or its value is not valid")
    return env


Path = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$"), AfterValidator(_at_home)]
Variables = Annotated[dict[str, str], AfterValidator(_variables)]


@dataclass
class Details:
    """The state of a sandbox in this protocol."""

    template: str = "base"
    env: dict[str, str] = field(default_factory=dict)
    ports: set[int] = field(default_factory=set)
    """Ports that clients have requested."""
    paused: bool = False
    requests: int = 0
    """Number of requests that are being answered."""

    @property
    def state(self) -> str:
        return "paused" if self.paused else "running"


class E2BService:
    """The clients of the protocol and their sandboxes."""

    def __init__(self, server: EnvServer):
        self.server, self.sandboxes = server, server.sandboxes
        self.details = PerSandbox(Details)
        self._secret = secrets.token_bytes(32)
        self._tasks: set[asyncio.Task[Any]] = set()

    def client(self, request: HTTPConnection) -> Client:
        return self.server.client(request, "sandboxes")

    def own_sandbox(self, request: Request) -> SandboxSession:
        """Return the client's sandbox in the path of a request."""
        return self.sandboxes.get(request.path_params["name"], self.client(request).name)

    def key_of(self, name: str) -> str:
        """Return the key of a sandbox, which allows everything except ending it and setting its timeout."""
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()

    def keys(self, session: SandboxSession, request: Request) -> dict[str, Any]:
        """Return the keys for a client, and the domain of the sandbox's ports.

        Some calls carry one of the two tokens, others the other one. Names below ``localhost`` resolve to this machine;
        an address has no names below it.
        """
        key, host = self.key_of(session.name), request.headers.get("host", "")
        address = urlsplit(f"//{host}")
        domain = None if _ADDRESS.fullmatch(address.hostname or "") else host
        if is_local(address.hostname or ""):
            domain = f"localhost:{address.port or 80}"
        return {
            "sandboxID": session.name,
            "templateID": self.details(session).template,
            "clientID": "rollenv",
            "envdVersion": VERSION,
            "domain": domain,
            "envdAccessToken": key,
            "trafficAccessToken": key,
        }

    def session(self, request: HTTPConnection, name: str = "", key: str | None = None) -> SandboxSession:
        """Return the sandbox of a request by name, by its header, or by the signature of its URL.

        Args:
            key: key of the sandbox; by default the header's.

        Raises:
            NotAllowed: the client may not use the sandbox.
            SessionGone: the sandbox has ended or is paused.
        """
        headers = request.headers
        name = name or headers.get("e2b-sandbox-id", "")
        key = key or headers.get("x-access-token") or headers.get("e2b-traffic-access-token")
        if not name and "signature" in request.query_params and request.url.path in FILES:
            name, key = self._signed(request)
        if key and self.server.tokens:
            named = self.sandboxes.by_name.get(name)
            if named is None:
                raise SessionGone("it was ended, its time is over, or the server was restarted")
            if not hmac.compare_digest(key.encode(), self.key_of(name).encode()):
                audit("refused", "nobody", path=request.url.path, why="another sandbox's key")
                raise NotAllowed("this is not the key of the sandbox")
            owner = named.owner
            if not self.server.tokens.holds(owner):
                raise NotAllowed("the token that opened the sandbox has expired")
            self.server.count_request(request, owner)
        else:
            owner = self.client(request).name
        session = self.sandboxes.get(name, owner)
        if self.details(session).paused:
            raise SessionGone("the sandbox is paused")
        return session

    def _signed(self, request: HTTPConnection) -> tuple[str, str]:
        """Return the sandbox whose key signed the URL of a file, which lacks its name, and the key."""
        params = request.query_params
        path, user, ends = (params.get(name, "") for name in ("path", "username", "signature_expiration"))
        if ends and not (ends.isascii() and ends.isdecimal() and int(ends[:15]) > time.time()):
            raise NotAllowed("the time of the signed URL is over")
        if ":" in user:  # it separates what is signed
            raise NotAllowed("a user's name has no colon")
        operation = "read" if request.scope["method"] == "GET" else "write"
        for name in self.sandboxes.by_name:
            key = self.key_of(name)
            text = ":".join([path, operation, user, key, *filter(None, [ends])])
            digest = base64.b64encode(hashlib.sha256(text.encode("utf-8", "replace")).digest()).rstrip(b"=")
            if hmac.compare_digest(b"v1_" + digest, params["signature"].encode("utf-8", "replace")):
                return name, key
        raise NotAllowed("the URL was not signed for this file with the key of a sandbox that runs")

    async def run(
        self, session: SandboxSession, work: Callable[[Sandbox], T], also: asyncio.Semaphore | None = None
    ) -> T:
        """Run ``work`` with a sandbox in a thread as soon as there is room. It continues if the request ends.

        Args:
            also: another semaphore to hold.
        """
        with self.request(session):
            async with contextlib.AsyncExitStack() as waiting:
                if also is not None:
                    await waiting.enter_async_context(also)
                await waiting.enter_async_context(session.use())
                begun = waiting.pop_all()

            async def whole() -> T:
                async with begun:
                    return await asyncio.to_thread(work, session.sandbox.sync)

            return await asyncio.shield(self.spawn(whole()))

    @contextlib.contextmanager
    def request(self, session: SandboxSession) -> Iterator[None]:
        """Count a request while it is answered, which keeps the sandbox from being idle."""
        details = self.details(session)
        if details.requests >= _REQUESTS:
            raise TooFast(f"{_REQUESTS} requests to this sandbox are being answered", retry_after=1.0)
        details.requests += 1
        try:
            with session.hold():
                yield
        finally:
            details.requests -= 1

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine that outlasts its request."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # avoid asyncio's warning if nobody awaits the task

    def route(self, method: str, path: str, handler: Handler, *, inside: bool = False) -> Route:
        """Build a route with E2B's error responses.

        Args:
            path: path below :data:`PREFIX`, or one of :data:`FILES`.
            inside: whether the server in a sandbox would answer, not the service. If the sandbox does not run, the
                status is 502.
        """

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except (*EXPECTED, HTTPException) as problem:
                # starlette raises HTTPException for a malformed form
                error = UsageError(problem.detail) if isinstance(problem, HTTPException) else problem
            status, text = status_of(error), str(error)
            if inside and isinstance(error, SessionGone | SandboxDied | SandboxPaused):
                status, text = 502, f"The sandbox was not found: {error}"  # clients look for these words
            elif getattr(error, "errno", None) in _NO_ROOM:
                status = 507
            return Json({"code": status, "message": text}, status, retry_after(error))

        return Route(path if path in FILES else PREFIX + path, answer, methods=[method])
