"""Commands and terminals: ``process.Process``."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import functools
import signal
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field
from starlette.requests import Request
from starlette.routing import BaseRoute

from rollenv.core.errors import UsageError
from rollenv.plugins.protocols.e2b.connect import (
    Feed,
    Message,
    client_stream,
    followed,
    ping_of,
    server_stream,
    timeout_of,
    unary,
)
from rollenv.plugins.protocols.e2b.service import E2BService, Path, Variables
from rollenv.remote.protocol import TooFast
from rollenv.sandbox import Sandbox
from rollenv.sandbox.commands import CommandHandle, Terminal
from rollenv.sandbox.errors import NotFound, SandboxDied, SandboxTimeout
from rollenv.sandbox.types import CommandResult
from rollenv.serve.responses import EXPECTED
from rollenv.serve.sandboxes import PerSandbox, SandboxSession

#: Maximum processes of one sandbox, and maximum concurrent writes to them, so that processes that do not read leave
#: room for other calls.
_PROCESSES, _INPUTS = 64, 4


def _base64(text: str) -> str:
    """Normalize base64 to the standard alphabet and padding."""
    text = text.translate({ord("-"): "+", ord("_"): "/"}).rstrip("=")
    text += "=" * (-len(text) % 4)
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"this is not base64: {error}") from error
    return text


Side = Annotated[int, Field(ge=0, le=65535)]
Base64 = Annotated[str, AfterValidator(_base64)]


class _Nothing(BaseModel):
    """The request of ``List``."""


class _Size(BaseModel):
    rows: Side = 0
    cols: Side = 0


class _Pty(BaseModel):
    size: _Size = _Size()


class _Config(BaseModel):
    cmd: str = Field(min_length=1)
    args: list[str] = []
    envs: Variables = {}
    cwd: Path | None = None


class _Start(BaseModel):
    process: _Config
    pty: _Pty | None = None
    tag: str | None = None
    stdin: bool = True


class _Selector(BaseModel):
    pid: int | None = Field(None, ge=0, lt=2**32)
    tag: str | None = None


class _Select(BaseModel):
    process: _Selector


class _Update(_Select):
    pty: _Pty | None = None


class _Input(BaseModel):
    stdin: Base64 | None = None
    pty: Base64 | None = None

    @property
    def data(self) -> bytes:
        return base64.b64decode((self.pty if self.stdin is None else self.stdin) or "")


class _SendInput(_Select):
    input: _Input


class _SendSignal(_Select):
    signal: Literal["SIGNAL_SIGKILL", "SIGNAL_SIGTERM", 9, 15]


class _Data(BaseModel):
    input: _Input


class _StreamInput(BaseModel):
    start: _Select | None = None
    data: _Data | None = None


class Running:
    """A process that a client started, and the streams that receive its output."""

    def __init__(self, params: _Start, seconds: float):
        self.params, self.seconds = params, seconds
        self.handle: CommandHandle | Terminal | None = None
        self.pid = 0
        self.feeds: list[Feed] = []
        self.last: dict[str, Any] | Exception | None = None
        """The message about the end, or the error."""

    def start(self, sandbox: Sandbox) -> None:
        config = self.params.process
        if self.params.pty is not None:
            size = self.params.pty.size
            start: Callable[..., Any] = sandbox.terminals.start
            more: dict[str, Any] = {"rows": size.rows or 24, "columns": size.cols or 80}
            more["on_data"] = functools.partial(self._send, "pty")
        else:
            start = sandbox.commands.start
            more = {f"on_{name}": functools.partial(self._send, name) for name in ("stdout", "stderr")}
            more["errors"] = "surrogateescape"  # clients get the bytes
        words = [config.cmd, *config.args]
        self.handle = handle = start(words, cwd=config.cwd, env=config.envs, timeout=self.seconds, **more)
        with contextlib.suppress(NotFound):  # the process has ended
            self.pid = handle.pid
            if isinstance(handle, CommandHandle) and not self.params.stdin:
                handle.send_stdin(b"", close=True)

    def follow(self, ended: Callable[[], None]) -> None:
        """Wait for the end and report it; runs in a thread."""
        begun = time.monotonic()
        try:
            assert self.handle is not None
            self.last = _end(self.handle.wait(), time.monotonic() - begun >= self.seconds)
        except (*EXPECTED, OSError) as error:
            self.last = error
        ended()
        for feed in list(self.feeds):
            feed.finish(self.last)

    def listen(self, feed: Feed) -> None:
        """Send events to a feed from now on."""
        self.feeds.append(feed)
        if self.last is not None:  # the process may have ended before
            feed.finish(self.last)

    def write(self, data: bytes, close: bool) -> None:
        """Write to the input; runs in a thread."""
        if isinstance(self.handle, Terminal):
            self.handle.send(data)
        elif self.handle is not None:
            self.handle.send_stdin(data, close)

    def _send(self, name: str, output: str | bytes) -> None:
        data = output.encode("utf-8", "surrogateescape") if isinstance(output, str) else output
        event = {"data": {name: base64.b64encode(data).decode()}}
        for feed in list(self.feeds):
            feed.put(event)

    def info(self) -> Message:
        config = self.params.process.model_dump(exclude_none=True)
        return {"pid": self.pid, "config": config} | ({} if self.params.tag is None else {"tag": self.params.tag})


def _end(result: CommandResult | int | None, late: bool) -> dict[str, Any] | Exception:
    """Build the message about a process's end, with the texts of Go's library, which E2B's clients expect."""
    error, code = (result.error, result.exit_code) if isinstance(result, CommandResult) else (None, result)
    if (error is not None and error.name == "Timeout") or (late and code in (None, 137)):
        return SandboxTimeout("the process ran longer than its timeout and was ended")
    if error is not None and error.name == "SandboxDied":
        return SandboxDied(error.value)
    if error is not None and error.name not in ("Exit", "Killed"):  # a limit
        return _ended(code or 1, True, error.value)
    if code is None or code > 128:
        number = 9 if code is None else code - 128
        return _ended(-1, False, f"signal: {(signal.strsignal(number) or str(number)).lower()}")
    return _ended(code, True, f"exit status {code}")


def _ended(code: int, exited: bool, status: str) -> dict[str, Any]:
    end = {"exitCode": code, "exited": exited, "status": status}
    return {"end": end | ({"error": status} if code else {})}


def routes(service: E2BService) -> list[BaseRoute]:
    """Routes of all methods of the service."""
    processes, name = _Processes(service), "process.Process"
    return [
        unary(service, f"{name}/List", _Nothing, processes.list),
        unary(service, f"{name}/Update", _Update, processes.update),
        unary(service, f"{name}/SendInput", _SendInput, processes.send_input),
        unary(service, f"{name}/SendSignal", _SendSignal, processes.send_signal),
        unary(service, f"{name}/CloseStdin", _Select, processes.close_stdin),
        server_stream(service, f"{name}/Start", _Start, processes.start),
        server_stream(service, f"{name}/Connect", _Select, processes.connect),
        client_stream(service, f"{name}/StreamInput", _StreamInput, processes.stream_input),
    ]


class _Processes:
    def __init__(self, service: E2BService):
        self.service = service
        self._running: PerSandbox[dict[int, Running]] = PerSandbox(dict)
        self._inputs = PerSandbox(lambda: asyncio.Semaphore(_INPUTS))

    async def start(self, session: SandboxSession, params: _Start, request: Request) -> AsyncGenerator[Message, None]:
        """Start a process and stream its events. It outlasts the client's connection."""
        seconds = self.service.sandboxes.seconds(timeout_of(request) or self.service.sandboxes.limits.longest)
        running, feed = Running(params, seconds), Feed(session.sandbox.sync)
        running.feeds.append(feed)
        await self.service.run(session, lambda sandbox: self._start(running, sandbox, self._running(session)))
        async with contextlib.aclosing(self._events(running, feed, request, None)) as events:
            async for event in events:
                yield event

    async def connect(
        self, session: SandboxSession, params: _Select, request: Request
    ) -> AsyncGenerator[Message, None]:
        """Stream the events of a process from now on."""
        running, feed = self._find(session, params), Feed(session.sandbox.sync)
        running.listen(feed)
        async with contextlib.aclosing(self._events(running, feed, request, timeout_of(request))) as events:
            async for event in events:
                yield event

    async def list(self, session: SandboxSession, params: _Nothing) -> Message:
        return {"processes": [running.info() for running in list(self._running(session).values())]}

    async def update(self, session: SandboxSession, params: _Update) -> Message:
        terminal, pty = self._find(session, params).handle, params.pty
        if pty is None or not isinstance(terminal, Terminal):
            raise UsageError("only terminals can be updated, and only their size")
        await self.service.run(session, lambda sandbox: terminal.resize(pty.size.rows or 24, pty.size.cols or 80))
        return {}

    async def send_input(self, session: SandboxSession, params: _SendInput) -> Message:
        await self._write(session, self._find(session, params), params.input.data)
        return {}

    async def stream_input(self, session: SandboxSession, messages: AsyncIterator[_StreamInput]) -> Message:
        running: Running | None = None
        async for message in messages:
            if message.start is not None:
                running = self._find(session, message.start)
            elif message.data is not None:
                if running is None:
                    raise UsageError("the first message must select a process")
                await self._write(session, running, message.data.input.data)
        return {}

    async def send_signal(self, session: SandboxSession, params: _SendSignal) -> Message:
        running = self._find(session, params)
        if params.signal in ("SIGNAL_SIGKILL", 9):
            await self.service.run(session, lambda sandbox: running.handle and running.handle.kill())
        else:
            command = ["/bin/sh", "-c", f"kill -TERM {running.pid}"]
            await self.service.run(session, lambda sandbox: sandbox.commands.run(command))
        return {}

    async def close_stdin(self, session: SandboxSession, params: _Select) -> Message:
        running = self._find(session, params)
        if not isinstance(running.handle, CommandHandle):
            raise UsageError("a terminal's input stays open; send it the byte 4")
        await self._write(session, running, b"", close=True)
        return {}

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _events(
        self, running: Running, feed: Feed, request: Request, seconds: float | None
    ) -> AsyncGenerator[Message, None]:
        try:
            yield {"event": {"start": {"pid": running.pid}}}
            async for event in followed(feed, ping_of(request), seconds):
                if isinstance(event, Exception):
                    raise event
                yield {"event": {"keepalive": {}} if event is None else event}
                if event is not None and "end" in event:
                    return
        finally:
            feed.close()
            with contextlib.suppress(ValueError):
                running.feeds.remove(feed)

    def _find(self, session: SandboxSession, params: _Select) -> Running:
        processes, tag, pid = self._running(session), params.process.tag, params.process.pid
        if tag is not None:
            running = next((each for each in list(processes.values()) if each.params.tag == tag), None)
        else:
            running = processes.get(pid) if pid is not None else None
        if running is None:
            raise NotFound("there is no such process")
        return running

    async def _write(self, session: SandboxSession, running: Running, data: bytes, close: bool = False) -> None:
        if isinstance(running.handle, CommandHandle) and not running.params.stdin:
            raise UsageError("the process was started without an input: pass stdin=True")
        await self.service.run(session, lambda sandbox: running.write(data, close), self._inputs(session))

    @staticmethod
    def _start(running: Running, sandbox: Sandbox, processes: dict[int, Running]) -> None:
        """Start a process, and a thread that waits for its end; runs in a thread."""
        if len(processes) >= _PROCESSES:
            raise TooFast(f"{_PROCESSES} processes of this sandbox run already")
        running.start(sandbox)
        processes[running.pid] = running

        def ended() -> None:
            if processes.get(running.pid) is running:
                processes.pop(running.pid, None)

        threading.Thread(target=running.follow, args=(ended,), name="e2b-process", daemon=True).start()
