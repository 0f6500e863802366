"""ROCK's sandboxes: ``rock.sdk.sandbox.client.Sandbox`` with ``SandboxConfig(base_url=...)``.

A sandbox has the programs of this server, whatever image is requested, and at most its limits. Its status has the
actual limits, and says what the client asked for and did not get.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import dataclasses
import datetime
import logging
import os
import re
import shlex
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rollenv.core.errors import UsageError
from rollenv.remote.protocol import ServerError, SessionGone
from rollenv.sandbox import AsyncSandbox
from rollenv.sandbox.errors import NotFound, SandboxError, SandboxFileError
from rollenv.sandbox.types import Execution, Limits
from rollenv.serve.responses import EXPECTED, Json, body_of, validated, wrong_fields
from rollenv.serve.sandboxes import PerSandbox, SandboxSession
from rollenv.serve.server import EnvServer

logger = logging.getLogger(__name__)

#: Maximum shells of a sandbox, and maximum commands that wait for one.
_SHELLS, _QUEUE = 16, 16

#: ROCK's client opens sessions with such names for one command, or for one in the background that it polls, and never
#: closes them. A busy one may be closed after this number of idle seconds.
PASSING, _QUIET = re.compile(r"bash-\d+"), 30.0


class Failed(Exception):
    """A command failed."""


class Shell:
    """A shell that keeps its state; ROCK calls it a session.

    Args:
        context: its name in the sandbox.
        setup: code that runs first, and again if the process has ended.
        passing: whether the client will never close it.
    """

    def __init__(self, context: str, setup: str, passing: bool):
        self.context, self.setup, self.passing = context, setup, passing
        self.used, self.runs, self._wanted = time.monotonic(), 0, 0
        self._lock = asyncio.Lock()

    @property
    def idle(self) -> float:
        """Seconds since the last command; 0 while one runs."""
        return 0.0 if self._wanted else time.monotonic() - self.used

    @contextlib.asynccontextmanager
    async def turn(self, seconds: float) -> AsyncIterator[None]:
        """Wait until no other command runs in the shell, and hold it."""
        if self._wanted > _QUEUE:
            raise UsageError(f"{_QUEUE} commands wait for this session already")
        self._wanted += 1
        try:
            try:
                async with asyncio.timeout(seconds):
                    await self._lock.acquire()
            except TimeoutError:
                raise UsageError(f"the session still runs another command after {seconds:g} s") from None
            try:
                yield
            finally:
                self._lock.release()
        finally:
            self._wanted -= 1
            self.runs += 1
            self.used = time.monotonic()

    async def run(self, sandbox: AsyncSandbox, command: str, seconds: float) -> tuple[Execution, str]:
        """Run a command with a timeout, after which it is interrupted; return the result and the output."""
        code = f"[[ ${{__began-}} ]] || {{ __began=1; {self.setup}; }}\n{command}"
        done = await sandbox.run_code(code, context=self.context, timeout=seconds)
        return done, "".join(done.logs.stdout + done.logs.stderr).strip()


@dataclasses.dataclass
class Details:
    """The state of a sandbox in this protocol."""

    lease: float | None = None
    """Seconds without a call after which the sandbox ends."""
    shells: dict[str, Shell] = dataclasses.field(default_factory=dict)
    calls: int = 0
    """Number of running calls."""
    limits: Limits | None = None
    lacking: str = ""
    """The settings that the client asked for and did not get."""
    labels: dict[str, str] = dataclasses.field(default_factory=dict)

    def shell(self, name: str) -> Shell:
        if name not in self.shells:
            raise UsageError(f"session {name!r:.80} does not exist")
        return self.shells[name]

    async def close(self, sandbox: AsyncSandbox, name: str) -> None:
        """End a shell."""
        shell = self.shell(name)
        del self.shells[name]
        with contextlib.suppress(NotFound):
            await sandbox.remove_context(shell.context)

    async def make_room(self, sandbox: AsyncSandbox) -> None:
        """End an abandoned shell if there are too many; last one that may have started a background command."""
        if len(self.shells) <= _SHELLS:
            return
        passing = [(shell.runs != 1, -shell.idle, name) for name, shell in self.shells.items() if shell.passing]
        ready = sorted(one for one in passing if one[1] < (-_QUIET if one[0] else 0))
        if not ready:
            raise UsageError(f"a sandbox has at most {_SHELLS} sessions; close one")
        await self.close(sandbox, ready[0][2])


def exit_code(done: Execution, command: str, output: str) -> int:
    """Return the exit code of a command in a shell."""
    if done.error is None:
        return 0
    match = re.search(r"(exited with|ended it:) (\d+)", done.error.value) if done.error.name == "Exit" else None
    if match is None:
        raise Failed(
            f"{done.error.value}: command {command!r:.1000}. Here is the end of the output:\n{output[-1000:]!r}"
        )
    return int(match[2]) + (128 if match[1].startswith("ended") else 0)


_PATH = "/apis/envs/sandbox/v1"

#: Codes of failures of the request, the server and the command.
_BAD, _BROKEN, _COMMAND = 4000, 5000, 6000

#: Default timeout of a command in a session, in seconds; ROCK's client waits no longer.
_SECONDS = 300.0

#: Encodings of files; others are slow or not encodings of text.
_ENCODINGS = (
    "ascii", "big5", "cp1252", "euc_jp", "euc_kr", "gb18030", "gbk", "iso8859-1", "shift_jis", "utf-16", "utf-32",
    "utf-8", "utf-8-sig",
)  # fmt: skip

#: Interactive shells accept the number of an ended job until the next prompt, which the client relies on.
_DISOWN = 'disown() { if [ $# -eq 0 ]; then builtin disown 2>/dev/null || :; else builtin disown "$@"; fi; }'

#: Maximum bytes of a file that is read as text.
_LARGEST_TEXT = 4 << 20

#: Maximum uploads in memory, and maximum stopped sandboxes that are remembered.
_UPLOADS, _REMEMBERED = 4, 1000

Text = Annotated[str, StringConstraints(min_length=1, max_length=10_000, pattern=r"^[^\x00]+$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
Env = (
    dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")],
        Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")],
    ]
    | None
)


def _megabytes(text: Any) -> Any:
    """Convert a size such as ``8g`` to MiB."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([kmgt]?)(i?b)?", text.lower()) if isinstance(text, str) else None
    if text is None or match is None:
        return text
    return max(1, int(float(match[1]) * 1024 ** " kmgt".index(match[2] or " ") / 2**20))


#: A size in MiB.
Megabytes = Annotated[int | None, Field(gt=0), BeforeValidator(_megabytes)]

#: Headers with the labels of a new sandbox.
_LABELS = {"user_id": "X-User-Id", "experiment_id": "X-Experiment-Id", "namespace": "X-Namespace"}


class Start(BaseModel):
    """The supported fields of the body of ``start_async``."""

    image_os: str = "linux"
    auto_clear_time_minutes: Seconds = None
    num_gpus: float | None = None
    cpus: float | None = None
    limit_cpus: float | None = None
    memory: Megabytes = None
    disk: Megabytes = None


class Named(BaseModel):
    """The fields of every other body."""

    sandbox_id: Text


class Command(Named):
    """The body of ``execute``."""

    command: str | list[str]
    timeout: Seconds = None
    cwd: Text | None = None
    env: Env = None


class InSession(Named):
    """The body of ``close_session``."""

    session_type: Literal["bash"] = "bash"
    session: Text = "default"


class NewSession(InSession):
    """The body of ``create_session``."""

    startup_source: list[Text] = []
    env: Env = None
    remote_user: str | None = None


class Action(InSession):
    """The body of ``run_in_session``."""

    action_type: Literal["bash"] = "bash"
    command: str
    timeout: Seconds = None
    check: Literal["silent", "raise", "ignore"] = "raise"


class Written(Named):
    """The body of ``write_file``."""

    path: Text
    content: str


class Read(Named):
    """The body of ``read_file``."""

    path: Text
    encoding: str | None = None
    errors: Literal["strict", "ignore", "replace", "backslashreplace"] | None = None


def routes(server: EnvServer) -> list[BaseRoute]:
    """Routes for sandboxes, their sessions and their files."""
    service = _Service(server)
    server.uploads.add(f"{_PATH}/upload")
    posts: dict[str, Any] = {
        "execute": (Command, service.execute),
        "create_session": (NewSession, service.create_session),
        "run_in_session": (Action, service.run_in_session),
        "close_session": (InSession, service.close_session),
        "write_file": (Written, service.write_file),
        "read_file": (Read, service.read_file),
        "stop": (Named, service.stop),
        "delete": (Named, service.delete),
        "restart": (Named, service.restart),
    }
    others: dict[str, Any] = {
        "start_async": (service.start, "POST"),
        "start": (service.start, "POST"),
        "upload": (service.upload, "POST"),
        "get_status": (service.get_status, "GET"),
        "is_alive": (service.get_status, "GET"),
        "get_token": (service.refuse, "GET", "POST"),
        "commit": (service.refuse, "GET", "POST"),
        "commit/{sandbox_id}": (service.refuse, "GET", "POST"),
        "sandboxes/{sandbox_id}/archive": (service.refuse, "GET", "POST"),
    }
    with_body: list[BaseRoute] = [
        Route(f"{_PATH}/{name}", service.handler(call, model), methods=["POST"])
        for name, (model, call) in posts.items()
    ]
    return with_body + [
        Route(f"{_PATH}/{name}", service.handler(call), methods=methods) for name, (call, *methods) in others.items()
    ]


class _Service:
    def __init__(self, server: EnvServer):
        self.server, self.sandboxes = server, server.sandboxes
        self._details = PerSandbox(Details)
        self._uploads = asyncio.Semaphore(_UPLOADS)
        self._ended: OrderedDict[tuple[str, str], str] = OrderedDict()

    def handler(self, call: Callable[[str, Any], Awaitable[Any]], model: type[BaseModel] | None = None) -> Any:
        """Build a request handler that returns failures as answers.

        Args:
            call: called with the owner and the body, or without a model the request; returns the result.
        """

        async def handle(request: Request) -> Response:
            client = self.server.client(request, "sandboxes")
            try:
                params = request if model is None else model.model_validate(await body_of(request))
                return _answer(result=await call(client.name, params))
            except ValidationError as error:
                return _failure(wrong_fields(error), _BAD, "invalid parameter")
            except (*EXPECTED, Failed) as error:
                return _failure(str(error), _code(error))

        return handle

    # -- sandboxes -----------------------------------------------------------------------------------------------------

    async def start(self, owner: str, request: Request) -> dict[str, Any]:
        """Start a sandbox with the labels of the headers."""
        params = Start.model_validate(await body_of(request))
        if params.image_os.lower() != "linux" or params.num_gpus:
            raise UsageError("the sandboxes here have Linux and no GPU")
        labels = {name: request.headers[key][:200] for name, key in _LABELS.items() if key in request.headers}
        minutes = params.auto_clear_time_minutes
        lease = self.sandboxes.lifetime(60 * minutes if minutes else None)
        usual = self.sandboxes.limits  # work in the background lasts as long as a sandbox
        memory, disk = params.memory or usual.limits.memory_mb, params.disk or usual.limits.disk_mb
        limits = dataclasses.replace(
            usual.limits,
            seconds=usual.total,
            memory_mb=min(memory, usual.limits.memory_mb),
            disk_mb=min(disk, usual.limits.disk_mb),
        )
        session = await self.sandboxes.open(owner, lifetime=lease, metadata=labels, limits=limits)
        details = self._details(session)
        lacking = [f"a limit of {params.limit_cpus:g} CPUs"] if params.limit_cpus else []
        lacking += [f"{params.cpus:g} CPUs"] if (params.cpus or 0) > (os.cpu_count() or 1) else []
        lacking += [f"{memory}m of memory, but {limits.memory_mb}m"] if memory > limits.memory_mb else []
        lacking += [f"{disk}m of disk, but {limits.disk_mb}m"] if disk > limits.disk_mb else []
        details.limits, details.lacking = limits, f"it does not have {'; '.join(lacking)}" if lacking else ""
        if lacking:
            logger.warning("ROCK's sandbox %.6s: %s", session.name, details.lacking)
        details.lease, details.labels = lease if minutes else None, labels
        return {"sandbox_id": session.name} | self._host()

    async def get_status(self, owner: str, request: Request) -> dict[str, Any]:
        """Return the status of a sandbox; of a stopped one only with ``include_all_states``."""
        name = request.query_params.get("sandbox_id", "")
        also_ended = request.query_params.get("include_all_states") in ("True", "true")
        status: dict[str, Any] = {
            "sandbox_id": name,
            "image": "rollenv:local",
            "status": {},
            "state": self._ended.get((owner, name)),
            "is_alive": False,
            "port_mapping": {},
            **self._host(),
        }
        if also_ended and status["state"] is not None:
            return status
        session = self.sandboxes.get(name, owner)
        ends, details = session.sandbox.sync.expires_at, self._details(session)
        limits = details.limits or self.sandboxes.limits.limits
        return {
            **status,
            **details.labels,
            "status": {"start": {"status": "success", "message": details.lacking}},
            "state": "running",
            "is_alive": True,
            "cpus": float(os.cpu_count() or 1),
            "memory": f"{limits.memory_mb}m",
            "disk": f"{limits.disk_mb}m",
            "start_time": _time(session.started),
            "create_time": _time(session.started),
            "auto_stop_time": ends and _time(ends),
        }

    async def stop(self, owner: str, params: Named) -> None:
        await self._end(owner, params.sandbox_id, "stopped")

    async def delete(self, owner: str, params: Named) -> None:
        """End a sandbox, or mark a stopped one as deleted."""
        if (owner, params.sandbox_id) in self._ended:
            self._ended[owner, params.sandbox_id] = "deleted"
        else:
            await self._end(owner, params.sandbox_id, "deleted")

    async def restart(self, owner: str, params: Named) -> None:
        """Refuse the request: the data of a stopped sandbox is not kept."""
        if (owner, params.sandbox_id) in self._ended:
            raise UsageError("nothing is kept of a stopped sandbox; start another one")
        self.sandboxes.get(params.sandbox_id, owner)
        raise UsageError("the sandbox is running; only a stopped one could be restarted, and of that nothing is kept")

    async def refuse(self, owner: str, request: Request) -> None:
        """Refuse a request that this server does not support."""
        name = request.url.path.removeprefix(_PATH)
        raise UsageError(f"{name} is not offered here: there is no store for images and files")

    # -- commands ------------------------------------------------------------------------------------------------------

    async def execute(self, owner: str, params: Command) -> dict[str, Any]:
        """Run a command outside of the sessions."""
        seconds = self.sandboxes.seconds(params.timeout or self.sandboxes.limits.longest)
        async with self._use(owner, params.sandbox_id, seconds) as (sandbox, _):
            try:
                done = await sandbox.commands.run(params.command, cwd=params.cwd, env=params.env, timeout=seconds)
            except SandboxFileError as error:  # a missing program or folder
                return {"stdout": "", "stderr": str(error), "exit_code": -1, "failure_reason": str(error)}
        if done.error is None or done.error.name in ("Exit", "Killed"):
            return {"stdout": done.stdout, "stderr": done.stderr, "exit_code": done.exit_code}
        why = done.error.value
        stderr = f"{done.stderr}\n{why}".strip()
        return {"stdout": done.stdout, "stderr": stderr, "exit_code": -1, "failure_reason": why}

    async def create_session(self, owner: str, params: NewSession) -> dict[str, Any]:
        if params.remote_user not in (None, "", "root", "user"):
            raise UsageError(f"a sandbox has one user, and none called {params.remote_user!r:.40}")
        exports = [f"export {name}={shlex.quote(value)}" for name, value in (params.env or {}).items()]
        sources = [f"source {shlex.quote(path)}" for path in params.startup_source]
        setup = "; ".join(["exec 2>&1", _DISOWN, *exports, *sources])
        async with self._use(owner, params.sandbox_id, _SECONDS) as (sandbox, details):
            shells = details.shells
            if params.session in shells:
                raise UsageError(f"session {params.session!r:.80} already exists")
            shell = Shell("", setup, PASSING.fullmatch(params.session) is not None)
            shells[params.session] = shell  # at once, to reserve the name
            try:
                async with shell.turn(_SECONDS):
                    await details.make_room(sandbox)
                    shell.context = await sandbox.create_context(language="bash")
                    _, output = await shell.run(sandbox, "", self.sandboxes.seconds(_SECONDS))
                if shells.get(params.session) is not shell:  # it was closed meanwhile
                    await sandbox.remove_context(shell.context)
                    raise UsageError("the session was closed")
            except BaseException:
                if shells.get(params.session) is shell:
                    del shells[params.session]
                raise
            shell.runs = 0
        return {"output": output, "session_type": "bash"}

    async def run_in_session(self, owner: str, params: Action) -> dict[str, Any]:
        seconds = self.sandboxes.seconds(params.timeout or _SECONDS)
        shell = self._details(self.sandboxes.get(params.sandbox_id, owner)).shell(params.session)
        async with shell.turn(seconds), self._use(owner, params.sandbox_id, seconds) as (sandbox, details):
            if details.shells.get(params.session) is not shell:
                raise UsageError("the session was closed")
            done, output = await shell.run(sandbox, params.command, seconds)
        code = exit_code(done, params.command, output)
        if params.check == "raise" and code:
            text = f"Command {params.command!r} failed with exit code {code}. Here is the output:\n{output!r}"
            raise Failed(text)
        return {
            "session_type": "bash",
            "output": output,
            "exit_code": None if params.check == "ignore" else code,
            "failure_reason": "",
            "expect_string": "",
        }

    async def close_session(self, owner: str, params: InSession) -> dict[str, Any]:
        async with self._use(owner, params.sandbox_id) as (sandbox, details):
            await details.close(sandbox, params.session)
        return {"session_type": "bash"}

    # -- files ---------------------------------------------------------------------------------------------------------

    async def write_file(self, owner: str, params: Written) -> dict[str, Any]:
        async with self._use(owner, params.sandbox_id) as (sandbox, _):
            await sandbox.files.write(params.path, params.content)
        return _written(params.path)

    async def upload(self, owner: str, request: Request) -> dict[str, Any]:
        try:
            async with request.form(max_files=1, max_fields=8) as form:
                file, target, name = form.get("file"), form.get("target_path"), form.get("sandbox_id")
                if not isinstance(file, UploadFile) or not isinstance(target, str) or not isinstance(name, str):
                    raise UsageError("an upload has a file, target_path and sandbox_id")
                path: str = validated(Text, target)
                async with self._use(owner, validated(Text, name)) as (sandbox, _), self._uploads:
                    await sandbox.files.write(path, await file.read())
        except HTTPException as error:
            raise UsageError(f"the form cannot be read: {error.detail}") from error
        return _written(path)

    async def read_file(self, owner: str, params: Read) -> dict[str, Any]:
        encoding = params.encoding or "utf-8"
        with contextlib.suppress(LookupError, ValueError):
            encoding = codecs.lookup(encoding).name
        if encoding not in _ENCODINGS:
            raise UsageError(f"files are not read in {encoding!r:.40}; the encodings are {', '.join(_ENCODINGS)}")
        async with self._use(owner, params.sandbox_id) as (sandbox, _):
            size = (await sandbox.files.info(params.path)).size
            if size > _LARGEST_TEXT:
                raise UsageError(f"{params.path!r:.200} has {size} bytes; at most {_LARGEST_TEXT} are read as text")
            data = await sandbox.files.read_bytes(params.path)
        if len(data) > _LARGEST_TEXT:
            raise UsageError(f"{params.path!r:.200} grew beyond {_LARGEST_TEXT} bytes while it was read")
        try:
            return {"content": await asyncio.to_thread(data.decode, encoding, params.errors or "strict")}
        except UnicodeDecodeError as error:
            raise UsageError(f"{params.path!r:.200} is not text in {encoding}: {error.reason}") from error

    # -- inside --------------------------------------------------------------------------------------------------------

    def _host(self) -> dict[str, str]:
        return {"host_name": "rollenv", "host_ip": self.server.settings.host}

    @contextlib.asynccontextmanager
    async def _use(self, owner: str, name: str, seconds: float = 0.0) -> AsyncIterator[tuple[AsyncSandbox, Details]]:
        """Hold a sandbox for a call with a timeout. Each call renews the lease."""
        session = self.sandboxes.get(name, owner)
        details = self._details(session)
        details.calls += 1
        try:
            async with session.use() as sandbox:
                self._renew(session, details, seconds)
                yield sandbox, details
        finally:
            details.calls -= 1
            if not details.calls and session.alive:
                self._renew(session, details, 0.0)

    def _renew(self, session: SandboxSession, details: Details, seconds: float) -> None:
        if details.lease is not None:
            ends = time.time() + details.lease + seconds
            if details.calls:  # another call may need it for longer
                ends = max(ends, session.sandbox.sync.expires_at or 0.0)
            left = min(ends - time.time(), session.opened + self.sandboxes.limits.total - time.monotonic())
            session.sandbox.sync.set_timeout(max(left, 0.001))

    async def _end(self, owner: str, name: str, state: str) -> None:
        await self.sandboxes.close(self.sandboxes.get(name, owner))
        self._ended[owner, name] = state
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)


# -- answers ----------------------------------------------------------------------------------------------


def _written(path: str) -> dict[str, Any]:
    return {"success": True, "message": "", "file_name": path.rpartition("/")[2]}


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()


def _code(error: Exception) -> int:
    if isinstance(error, Failed):
        return _COMMAND
    broken = isinstance(error, ServerError | SandboxError) and not isinstance(error, SessionGone | SandboxFileError)
    return _BROKEN if broken else _BAD


def _failure(text: str, code: int, message: str | None = None) -> Response:
    reason = {"code": code, "exit_code": None, "failure_reason": text}
    return _answer("Failed", message=message, error=text, result=reason)


def _answer(status: str = "Success", *, message: str | None = None, error: str | None = None, result: Any) -> Response:
    return Json({"status": status, "message": message, "error": error, "result": result})
