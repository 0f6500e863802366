"""Execution of code in contexts, for ``e2b_code_interpreter``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rollenv.core.errors import UsageError
from rollenv.plugins.protocols.e2b.connect import Feed, followed
from rollenv.plugins.protocols.e2b.service import HOME, E2BService, Path, Variables
from rollenv.remote.protocol import SessionGone
from rollenv.sandbox.errors import InvalidArgument, NotFound, SandboxDied
from rollenv.sandbox.sandbox import DEFAULT, STATEFUL, default_name
from rollenv.sandbox.types import Context, Execution, ExecutionError, Result
from rollenv.serve.responses import EXPECTED, Json, Streamed, body_of, validated
from rollenv.serve.sandboxes import PerSandbox, SandboxSession

#: Seconds of silence before a keepalive.
_QUIET = 5.0
#: Seconds that code may take to end after its client has disconnected; then its context is restarted.
_LAST = 5.0
_SHORT = {"js": "javascript", "py": "python", "sh": "bash", "shell": "bash"}


def _language(value: str) -> str:
    name = value.strip().lower()
    name = _SHORT.get(name, name)
    if name not in STATEFUL:
        raise ValueError(f"there is no language {value!r:.40} here; choose from {', '.join(STATEFUL)}")
    return name


_Language = Annotated[str, AfterValidator(_language)]


class _Code(BaseModel):
    code: str
    context_id: str | None = None
    language: _Language | None = None
    env_vars: Variables | None = None


class _NewContext(BaseModel):
    language: _Language | None = None
    cwd: Path | None = None


class _Cell:
    def __init__(self, session: SandboxSession, params: _Code):
        self.session, self.params, self.begun = session, params, False
        self.context = params.context_id or default_name(params.language or "python")


def routes(service: E2BService) -> list[BaseRoute]:
    """Routes of cells and contexts."""
    interpreter = _Interpreter(service)
    handlers = [
        ("POST", "/execute", interpreter.execute),
        ("POST", "/contexts", interpreter.create),
        ("GET", "/contexts", interpreter.every),
        ("DELETE", "/contexts/{context}", interpreter.remove),
        ("POST", "/contexts/{context}/restart", interpreter.restart),
    ]
    return [service.route(method, path, handler, inside=True) for method, path, handler in handlers]


class _Interpreter:
    def __init__(self, service: E2BService):
        self.service = service
        self._turns: PerSandbox[dict[str, asyncio.Lock]] = PerSandbox(dict)
        """Locks by context: cells of one context run one after another."""

    async def execute(self, request: Request) -> Response:
        """Run a cell and stream its output as lines of JSON."""
        session = self.service.session(request)
        params = validated(_Code, await body_of(request))
        name = params.context_id
        if name is not None:
            if params.language is not None:
                raise UsageError("a context has a language of its own; leave out one of the two")
            contexts = await self.service.run(session, lambda sandbox: sandbox.list_contexts())
            if name != DEFAULT and all(context.name != name for context in contexts):
                raise NotFound(f"there is no context {name!r:.80}")
        return Streamed(self._lines(_Cell(session, params)), "application/x-ndjson", self.service.request(session))

    async def create(self, request: Request) -> Response:
        session = self.service.session(request)
        params = validated(_NewContext, await body_of(request))
        language, cwd = params.language or "python", params.cwd
        name = await self.service.run(session, lambda sandbox: sandbox.create_context(language=language, cwd=cwd))
        return Json(_context(Context(name, language, cwd)), 201)

    async def every(self, request: Request) -> Response:
        session = self.service.session(request)
        contexts = await self.service.run(session, lambda sandbox: sandbox.list_contexts())
        if all(context.name != DEFAULT for context in contexts):
            contexts = [Context(DEFAULT, "python", None), *contexts]  # it starts with its first cell
        return Json([_context(context) for context in contexts])

    async def remove(self, request: Request) -> Response:
        session, name = self.service.session(request), request.path_params["context"]
        await self.service.run(session, lambda sandbox: sandbox.remove_context(name))
        self._turns(session).pop(name, None)
        return Response(status_code=204)

    async def restart(self, request: Request) -> Response:
        session, name = self.service.session(request), request.path_params["context"]
        await self.service.run(session, lambda sandbox: sandbox.restart_context(name))
        return Response(status_code=204)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _lines(self, cell: _Cell) -> AsyncGenerator[bytes, None]:
        """Yield the output of a cell until it ends; stop the cell if its client disconnects before."""
        feed = Feed(cell.session.sandbox.sync)
        task = self.service.spawn(self._run(cell, feed))
        try:
            async for event in followed(feed, _QUIET):
                event = event or {"type": "keepalive"}
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
        turn = self._turns(cell.session).setdefault(cell.context, asyncio.Lock())
        try:
            async with turn, cell.session.use():
                cell.begun = True
                done = await asyncio.to_thread(self._cell, cell, feed)
            if done.error is not None:
                feed.finish(_error(done.error))
            feed.finish({"type": "number_of_executions", "execution_count": done.execution_count})
        except (SandboxDied, SessionGone):
            last = {"type": "lost"}
        except EXPECTED as error:
            name = "UsageError" if isinstance(error, InvalidArgument) else type(error).__name__
            feed.finish(_error(ExecutionError(name, str(error))))
        finally:
            feed.finish(last)

    def _cell(self, cell: _Cell, feed: Feed) -> Execution:
        stderr = _Stderr(feed)
        done = cell.session.sandbox.sync.run_code(
            cell.params.code,
            language=cell.params.language,
            context=cell.params.context_id,
            timeout=self.service.sandboxes.limits.longest,
            on_stdout=lambda text: feed.put(_text("stdout", text)),
            on_stderr=stderr.put,
            on_result=lambda result: feed.put(_result(result)),
            env=cell.params.env_vars or {},
        )
        stderr.finish(done.error)
        return done

    async def _stop(self, cell: _Cell, task: asyncio.Task[None]) -> None:
        """Interrupt a cell whose client has disconnected; if that does not end it, restart its context."""
        if not cell.begun:
            task.cancel()
            return
        sandbox = cell.session.sandbox
        await sandbox.interrupt(cell.context)
        done, _ = await asyncio.wait((task,), timeout=_LAST)
        if not done:
            await sandbox.restart_context(cell.context)


class _Stderr:
    """Standard error without the traceback of a cell's final error, which E2B sends only as part of the error."""

    def __init__(self, feed: Feed):
        self._feed, self._held = feed, ""

    def put(self, text: str) -> None:
        """Send a text; hold back one that may be the final traceback until another follows."""
        self._send(self._held)
        self._held = text if "Traceback (most recent call last)" in text or 'File "<' in text else ""
        if not self._held:
            self._send(text)

    def finish(self, error: ExecutionError | None) -> None:
        """Send the text held back, without the traceback."""
        traceback = error.traceback.strip() if error is not None else ""
        if traceback and self._held.strip().endswith(traceback):
            self._held = self._held.strip().removesuffix(traceback)
        self._send(self._held)

    def _send(self, text: str) -> None:
        if text:
            self._feed.put(_text("stderr", text))


def _text(stream: str, text: str) -> dict[str, Any]:
    return {"type": stream, "text": text, "timestamp": time.time_ns()}


def _error(error: ExecutionError) -> dict[str, Any]:
    return {"type": "error", "name": error.name, "value": error.value, "traceback": error.traceback}


def _result(result: Result) -> dict[str, Any]:
    data = {name: getattr(result, name) for name in result.formats() if name not in result.extra}
    text = data.get("text") or ""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":  # E2B takes the quotes of a string
        data["text"] = text[1:-1]
    return {"type": "result", **data, "is_main_result": result.is_main_result, "extra": result.extra or None}


def _context(context: Context) -> dict[str, str]:
    return {"id": context.name, "language": context.language, "cwd": context.cwd or HOME}
