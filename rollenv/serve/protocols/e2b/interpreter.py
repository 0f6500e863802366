"""Code in contexts, as ``e2b_code_interpreter`` runs it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rollenv.core import RollenvError, UsageError
from rollenv.remote.protocol import SessionGone
from rollenv.sandbox.errors import NotFound, SandboxDied
from rollenv.sandbox.sandbox import DEFAULT, STATEFUL, default_name
from rollenv.sandbox.types import Context, Execution, ExecutionError, Result
from rollenv.serve.protocols.e2b.base import HOME, E2BService, at_home, variables
from rollenv.serve.protocols.e2b.streams import Feed, Streamed
from rollenv.serve.responses import Json, body_of
from rollenv.serve.sandboxes import SandboxSession

#: Seconds of silence until a client hears that code still runs.
_QUIET = 5.0
#: Seconds that code gets to end once nobody waits for it; then its context is restarted.
_LAST = 5.0
_SHORT = {"js": "javascript", "py": "python", "sh": "bash", "shell": "bash"}


@dataclass
class _Cell:
    """Code and where it runs."""

    box: SandboxSession
    code: str
    language: str | None
    context: str | None
    env: dict[str, str]
    begun: bool = False

    @property
    def place(self) -> str:
        """The name of its context."""
        return self.context or default_name(self.language or "python")


def routes(service: E2BService) -> list[BaseRoute]:
    """Cells and contexts."""
    desk = _Interpreter(service)
    found = [
        ("POST", "/execute", desk.execute),
        ("POST", "/contexts", desk.create),
        ("GET", "/contexts", desk.every),
        ("DELETE", "/contexts/{context}", desk.remove),
        ("POST", "/contexts/{context}/restart", desk.restart),
    ]
    return [service.route(method, path, handler, inside=True) for method, path, handler in found]


class _Interpreter:
    def __init__(self, service: E2BService):
        self.service = service

    async def execute(self, request: Request) -> Response:
        """Run a cell; its output comes as lines of JSON."""
        box = self.service.box(request)
        body = await body_of(request)
        code, context = body.get("code"), body.get("context_id")
        if not isinstance(code, str) or not (context is None or isinstance(context, str)):
            raise UsageError("the request needs 'code', a text, and may have 'context_id', a text")
        language = _language(body.get("language"))
        if context is not None and language is not None:
            raise UsageError("a context has a language of its own; leave out one of the two")
        cell = _Cell(box, code, language, context, variables(body.get("env_vars"), "env_vars"))
        if context is not None:
            await self._require(box, context)
        return Streamed(self._lines(cell), "application/x-ndjson", self.service.held(box))

    async def create(self, request: Request) -> Response:
        box = self.service.box(request)
        body = await body_of(request)
        language = _language(body.get("language")) or "python"
        cwd = None if body.get("cwd") is None else at_home(body["cwd"])
        name = await self.service.run(box, lambda sandbox: sandbox.create_context(language=language, cwd=cwd))
        return Json(_told(Context(name, language, cwd)), 201)

    async def every(self, request: Request) -> Response:
        box = self.service.box(request)
        found = await self.service.run(box, lambda sandbox: sandbox.list_contexts())
        if all(context.name != DEFAULT for context in found):
            found = [Context(DEFAULT, "python", None), *found]  # it begins with its first cell
        return Json([_told(context) for context in found])

    async def remove(self, request: Request) -> Response:
        box, name = self.service.box(request), request.path_params["context"]
        await self.service.run(box, lambda sandbox: sandbox.remove_context(name))
        self.service.kept(box).turns.pop(name, None)
        return Response(status_code=204)

    async def restart(self, request: Request) -> Response:
        box, name = self.service.box(request), request.path_params["context"]
        await self.service.run(box, lambda sandbox: sandbox.restart_context(name))
        return Response(status_code=204)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _require(self, box: SandboxSession, name: str) -> None:
        found = await self.service.run(box, lambda sandbox: sandbox.list_contexts())
        if all(context.name != name for context in found) and name != DEFAULT:
            raise NotFound(f"there is no context {name!r:.80}")

    async def _lines(self, cell: _Cell) -> AsyncGenerator[bytes, None]:
        """Yield the output of a cell until it ends. If nobody listens to the end, the cell is stopped."""
        feed = Feed(cell.box.sandbox.sync)
        task = self.service.spawn(self._run(cell, feed))
        try:
            while True:
                try:
                    event = await feed.get(_QUIET)
                except TimeoutError:
                    event = {"type": "keepalive"}
                yield json.dumps(event).encode() + b"\n"
                if event["type"] == "end_of_execution":
                    return
                if event["type"] == "lost":
                    raise SandboxDied("the sandbox was ended while this ran in it")
        finally:
            feed.close()
            if not task.done():
                self.service.spawn(self._stop(cell, task))

    async def _run(self, cell: _Cell, feed: Feed) -> None:
        last: dict[str, Any] = {"type": "end_of_execution"}
        turn = self.service.kept(cell.box).turns.setdefault(cell.place, asyncio.Lock())
        try:
            async with turn, cell.box.use():
                cell.begun = True
                done = await asyncio.to_thread(self._cell, cell, feed)
            if done.error is not None:
                feed.finish(_error(done.error))
            feed.finish({"type": "number_of_executions", "execution_count": done.execution_count})
        except (SandboxDied, SessionGone):
            last = {"type": "lost"}
        except RollenvError as error:
            feed.finish(_error(ExecutionError(type(error).__name__, str(error))))
        finally:
            feed.finish(last)

    def _cell(self, cell: _Cell, feed: Feed) -> Execution:
        """Run it, in a thread."""
        stderr = _Stderr(feed)
        done = cell.box.sandbox.sync.run_code(
            cell.code,
            language=cell.language,
            context=cell.context,
            timeout=self.service.sandboxes.limits.longest,
            on_stdout=lambda text: feed.put(_text("stdout", text)),
            on_stderr=stderr.put,
            on_result=lambda result: feed.put(_result(result)),
            env=cell.env,
        )
        stderr.finish(done.error)
        return done

    async def _stop(self, cell: _Cell, task: asyncio.Task[None]) -> None:
        """Interrupt a cell whose client has gone; if that does not end it, restart its context."""
        if not cell.begun:
            task.cancel()
            return
        sandbox = cell.box.sandbox
        await sandbox.interrupt(cell.place)
        done, _ = await asyncio.wait((task,), timeout=_LAST)
        if not done:
            await sandbox.restart_context(cell.place)


class _Stderr:
    """Standard error without the traceback of the error that ends a cell: E2B tells it once, as the error's."""

    def __init__(self, feed: Feed):
        self._feed, self._held = feed, ""

    def put(self, text: str) -> None:
        """Tell it, or hold it until something follows if it can be the last traceback."""
        self._tell(self._held)
        self._held = text if "Traceback (most recent call last)" in text or "<code>" in text else ""
        if not self._held:
            self._tell(text)

    def finish(self, error: ExecutionError | None) -> None:
        """Tell what is held but the traceback."""
        traceback = error.traceback.strip() if error is not None else ""
        if traceback and self._held.strip().endswith(traceback):
            self._held = self._held.strip().removesuffix(traceback)
        self._tell(self._held)

    def _tell(self, text: str) -> None:
        if text:
            self._feed.put(_text("stderr", text))


def _text(stream: str, text: str) -> dict[str, Any]:
    return {"type": stream, "text": text, "timestamp": time.time_ns()}


def _error(error: ExecutionError) -> dict[str, Any]:
    return {"type": "error", "name": error.name, "value": error.value, "traceback": error.traceback}


def _result(result: Result) -> dict[str, Any]:
    told = {name: getattr(result, name) for name in result.formats() if name not in result.extra}
    return {"type": "result", **told, "is_main_result": result.is_main_result, "extra": result.extra or None}


def _told(context: Context) -> dict[str, str]:
    return {"id": context.name, "language": context.language, "cwd": context.cwd or HOME}


def _language(value: Any) -> str | None:
    if value is None:
        return None
    name = value.strip().lower() if isinstance(value, str) else ""
    name = _SHORT.get(name, name)
    if name not in STATEFUL:
        raise UsageError(f"there is no language {value!r:.40} here; choose from {', '.join(STATEFUL)}")
    return name
