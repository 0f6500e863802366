"""Commands and terminals: ``process.Process``."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from rollenv.core import UsageError
from rollenv.remote.protocol import TooFast
from rollenv.sandbox import Sandbox
from rollenv.sandbox.commands import CommandHandle
from rollenv.sandbox.errors import NotFound
from rollenv.sandbox.terminals import Terminal
from rollenv.serve.protocols.e2b import rpc
from rollenv.serve.protocols.e2b.base import E2BService, at_home, variables
from rollenv.serve.protocols.e2b.rpc import Message
from rollenv.serve.protocols.e2b.running import Running
from rollenv.serve.protocols.e2b.streams import Feed
from rollenv.serve.sandboxes import SandboxSession

#: Processes of one sandbox that clients started.
_PROCESSES = 64


def routes(service: E2BService) -> list[BaseRoute]:
    """All methods of the service."""
    desk, name = _Processes(service), "process.Process"
    found = {
        "List": desk.list,
        "Update": desk.update,
        "SendInput": desk.send_input,
        "SendSignal": desk.send_signal,
        "CloseStdin": desk.close_stdin,
    }
    methods: list[BaseRoute] = [rpc.unary(service, f"{name}/{method}", call) for method, call in found.items()]
    methods.append(rpc.server_stream(service, f"{name}/Start", desk.start))
    methods.append(rpc.server_stream(service, f"{name}/Connect", desk.connect))
    methods.append(rpc.client_stream(service, f"{name}/StreamInput", desk.stream_input))
    return methods


class _Processes:
    def __init__(self, service: E2BService):
        self.service = service

    async def start(self, box: SandboxSession, message: Message, request: Request) -> AsyncGenerator[Message, None]:
        """Start a process and say what it does. It goes on when the client goes."""
        seconds = self.service.sandboxes.seconds(rpc.timeout_of(request) or self.service.sandboxes.limits.longest)
        running, feed = _asked(message, seconds), Feed(box.sandbox.sync)
        running.feeds.append(feed)
        await self.service.run(box, lambda sandbox: self._start(running, sandbox, self.service.kept(box).processes))
        async with contextlib.aclosing(self._said(running, feed, request, None)) as events:
            async for event in events:
                yield event

    async def connect(self, box: SandboxSession, message: Message, request: Request) -> AsyncGenerator[Message, None]:
        """Say what a process does from now on."""
        running, feed = self._find(box, message), Feed(box.sandbox.sync)
        running.listen(feed)
        async with contextlib.aclosing(self._said(running, feed, request, rpc.timeout_of(request))) as events:
            async for event in events:
                yield event

    async def list(self, box: SandboxSession, message: Message) -> Message:
        running = list(self.service.kept(box).processes.values())
        return {"processes": [_info(each) for each in running]}

    async def update(self, box: SandboxSession, message: Message) -> Message:
        running = self._find(box, message)
        size = _size(message.get("pty"))
        if size is None or not isinstance(running.handle, Terminal):
            raise UsageError("only terminals have something to change: their size")
        terminal = running.handle
        await self.service.run(box, lambda sandbox: terminal.resize(*size))
        return {}

    async def send_input(self, box: SandboxSession, message: Message) -> Message:
        await self._write(box, self._find(box, message), _input(message.get("input")))
        return {}

    async def stream_input(self, box: SandboxSession, messages: AsyncIterator[Message]) -> Message:
        running: Running | None = None
        async for message in messages:
            if "start" in message:
                running = self._find(box, rpc.object_of(message["start"], "start"))
            elif "data" in message:
                if running is None:
                    raise UsageError("the first message says which process is meant")
                await self._write(box, running, _input(rpc.object_of(message["data"], "data").get("input")))
        return {}

    async def send_signal(self, box: SandboxSession, message: Message) -> Message:
        running, kind = self._find(box, message), message.get("signal")
        if kind not in ("SIGNAL_SIGKILL", "SIGNAL_SIGTERM", 9, 15):
            raise UsageError("processes can be sent SIGNAL_SIGKILL and SIGNAL_SIGTERM")
        if kind in ("SIGNAL_SIGKILL", 9):
            await self.service.run(box, lambda sandbox: running.kill())
        else:
            command = ["/bin/sh", "-c", f"kill -TERM {running.pid}"]
            await self.service.run(box, lambda sandbox: sandbox.commands.run(command))
        return {}

    async def close_stdin(self, box: SandboxSession, message: Message) -> Message:
        running = self._find(box, message)
        if not isinstance(running.handle, CommandHandle):
            raise UsageError("a terminal's input stays open; send it the byte 4")
        await self._write(box, running, b"", close=True)
        return {}

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _said(
        self, running: Running, feed: Feed, request: Request, seconds: float | None
    ) -> AsyncGenerator[Message, None]:
        try:
            yield {"event": {"start": {"pid": running.pid}}}
            async for event in rpc.followed(feed, request, seconds):
                if isinstance(event, Exception):
                    raise event
                yield {"event": {"keepalive": {}} if event is None else event}
                if event is not None and "end" in event:
                    return
        finally:
            feed.close()
            with contextlib.suppress(ValueError):
                running.feeds.remove(feed)

    def _find(self, box: SandboxSession, message: Message) -> Running:
        processes = self.service.kept(box).processes
        selector = rpc.object_of(message.get("process"), "process")
        if "tag" in selector:
            found = next((each for each in list(processes.values()) if each.tag == selector["tag"]), None)
        else:
            found = processes.get(rpc.number_of(selector.get("pid"), "pid", 2**32 - 1))
        if found is None:
            raise NotFound("there is no such process")
        return found

    async def _write(self, box: SandboxSession, running: Running, data: bytes, close: bool = False) -> None:
        if isinstance(running.handle, CommandHandle) and not running.stdin:
            raise UsageError("the process was started without an input: pass stdin=True")
        await self.service.run(box, lambda sandbox: running.write(data, close), self.service.kept(box).inputs)

    @staticmethod
    def _start(running: Running, sandbox: Sandbox, processes: dict[int, Running]) -> None:
        """Start a process and keep it until it ends, in a thread."""
        if len(processes) >= _PROCESSES:
            raise TooFast(f"{_PROCESSES} processes of this sandbox run already")
        running.start(sandbox)
        processes[running.pid] = running

        def ended() -> None:
            if processes.get(running.pid) is running:
                processes.pop(running.pid, None)

        threading.Thread(target=running.follow, args=(ended,), name="e2b-process", daemon=True).start()


def _asked(message: Message, seconds: float) -> Running:
    """The process that a client wants."""
    wanted = rpc.object_of(message.get("process"), "process")
    args = wanted.get("args") or []
    words = [wanted.get("cmd"), *args] if isinstance(args, list) else []
    if not words or not words[0] or not all(isinstance(word, str) for word in words):
        raise UsageError("a process needs 'cmd', a text, and may have 'args', texts")
    tag, cwd = message.get("tag"), wanted.get("cwd")
    if tag is not None and not isinstance(tag, str):
        raise UsageError("a tag is a text")
    return Running(
        words=words,
        env=variables(wanted.get("envs"), "envs"),
        cwd=None if cwd is None else at_home(cwd),
        tag=tag,
        size=_size(message.get("pty")),
        stdin=message.get("stdin", True) is not False,
        seconds=seconds,
    )


def _size(pty: Any) -> tuple[int, int] | None:
    if pty is None:
        return None
    size = rpc.object_of(rpc.object_of(pty, "pty").get("size"), "size")
    rows, columns = (rpc.number_of(size.get(name, 0), name, 65535) for name in ("rows", "cols"))
    return rows or 24, columns or 80


def _input(value: Any) -> bytes:
    said = rpc.object_of(value, "input")
    return rpc.bytes_of(said.get("stdin", said.get("pty")), "input")


def _info(running: Running) -> Message:
    told: Message = {"pid": running.pid, "config": running.config()}
    return told | ({} if running.tag is None else {"tag": running.tag})
