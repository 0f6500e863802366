"""SandboxFusion: ``sandbox_fusion`` with ``SANDBOX_FUSION_ENDPOINT``, verl and ROLL with ``http://HOST:PORT/run_code``.

The paths are the original's and exist also below ``/fusion``. Its data sets (``submit``, ``get_prompts``, ...) are not
served: rollenv's environments ``code:*`` hold programs to tests.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rollenv.core.errors import UsageError
from rollenv.plugins.protocols.fusion.programs import (
    LANGUAGES,
    Language,
    Notebook,
    Program,
    broken,
    outcome,
    run_cells,
    run_words,
    write_files,
)
from rollenv.sandbox import AsyncSandbox
from rollenv.sandbox.errors import NotFound, SandboxError
from rollenv.sandbox.types import Limits, RunResult
from rollenv.serve.responses import Json, body_of, while_connected
from rollenv.serve.server import EnvServer

#: Prefixes of the routes.
_PREFIXES = ("", "/fusion")

#: Minimum memory with which a program starts.
_LEAST_MB = 16


def routes(server: EnvServer) -> list[BaseRoute]:
    """Routes for running programs and notebooks."""
    service = _Service(server)
    posts: dict[str, Any] = {"run_code": (Program, service.run_code), "run_jupyter": (Notebook, service.run_jupyter)}

    async def ping(request: Request) -> Response:
        server.client(request, "sandboxes")
        return Json("pong")

    routes: list[BaseRoute] = []
    for prefix in _PREFIXES:
        routes += [Route(f"{prefix}/{name}", service.handler(*post), methods=["POST"]) for name, post in posts.items()]
        routes.append(Route(f"{prefix}/v1/ping", ping))
    return routes


class _Service:
    def __init__(self, server: EnvServer):
        self.server, self.sandboxes = server, server.sandboxes

    def handler(self, model: type[BaseModel], call: Callable[[str, Any], Awaitable[Any]]) -> Any:
        """Build a request handler from a function of (owner, body) that returns the answer."""

        async def handle(request: Request) -> Response:
            client = self.server.client(request, "sandboxes")
            body = await body_of(request)
            try:
                params = model.model_validate(body)
            except ValidationError as error:
                detail = error.errors(include_url=False, include_context=False, include_input=False)
                return Json({"detail": detail}, 422)
            return Json(await while_connected(request.receive, call(client.name, params)))

        return handle

    async def run_code(self, owner: str, params: Program) -> dict[str, Any]:
        """Run a program in a new sandbox, or a plain Python program in a warm one."""
        language, files = LANGUAGES.get(params.language), params.contents()
        if language is None:
            names = ", ".join(LANGUAGES)
            return broken(f"the language {params.language!r:.40} is not offered here; there are {names}")
        try:
            limits = self._limits(params.memory_limit_MB)
            if params.language != "python" or files or params.fetch_files or limits:
                async with self.sandboxes.brief(owner, limits) as sandbox:
                    compiled, ran = await self._run_file(sandbox, params, language, files)
                    fetched = await self._fetched(sandbox, params.fetch_files)
                if params.language == "pytest" and ran and ran.exit_code and "No module named pytest" in ran.stderr:
                    return broken("the language 'pytest' is not offered here: pytest is not installed")
                return outcome(ran, compiled) | {"files": fetched}
            ran = await self.sandboxes.run(owner, params.code, stdin=params.stdin or "", timeout=params.run_timeout)
            return outcome(ran)
        except NotFound as error:
            return broken(f"the language {params.language!r} is not offered here: {error}")
        except SandboxError as error:
            return broken(str(error))

    async def run_jupyter(self, owner: str, params: Notebook) -> dict[str, Any]:
        files = params.contents()
        try:
            async with self.sandboxes.brief(owner) as sandbox:
                await write_files(sandbox, files)
                began = asyncio.get_running_loop().time()
                cells, status, problem = await run_cells(sandbox, params, self.sandboxes.seconds(params.total_timeout))
                seconds = asyncio.get_running_loop().time() - began
                fetched = await self._fetched(sandbox, params.fetch_files)
        except SandboxError as error:
            return broken(str(error)) | {"driver": None, "cells": []}
        code = {"Finished": 0, "Error": 1}.get(status)
        driver = {"status": status, "execution_time": seconds, "return_code": code, "stdout": "", "stderr": problem}
        return {
            "status": "Success" if status == "Finished" else "Failed",
            "message": "",
            "driver": driver,
            "cells": cells,
            "executor_pod_name": None,
            "files": fetched,
        }

    # -- inside --------------------------------------------------------------------------------------------------------

    def _limits(self, memory_mb: int | None) -> Limits | None:
        """Return the limits of a program with less memory than usual; None for the usual limits."""
        usual = self.sandboxes.limits.limits
        if memory_mb is None or memory_mb <= 0 or memory_mb >= usual.memory_mb:
            return None
        if memory_mb < _LEAST_MB:
            raise UsageError(f"memory_limit_MB is at least {_LEAST_MB} here, or -1 for {usual.memory_mb}")
        return dataclasses.replace(usual, memory_mb=memory_mb)

    async def _run_file(
        self, sandbox: AsyncSandbox, params: Program, language: Language, files: Mapping[str, bytes]
    ) -> tuple[RunResult | None, RunResult | None]:
        """Compile and run a program in a file; return both results."""
        name = f"tmp{secrets.token_hex(4)}{language.suffix}"
        await write_files(sandbox, {**files, name: params.code.encode()})
        compiled = None
        if language.compile:
            words = [word.format(file=name) for word in language.compile]
            compiled = await run_words(sandbox, words, "", self.sandboxes.seconds(params.compile_timeout or None))
            if compiled.exit_code or compiled.timed_out:
                return compiled, None
        words = [word.format(file=name, python=sys.executable) for word in language.run]
        words += params.args if params.language == "pytest" else []
        return compiled, await run_words(sandbox, words, params.stdin or "", self.sandboxes.seconds(params.run_timeout))

    async def _fetched(self, sandbox: AsyncSandbox, paths: Iterable[str]) -> dict[str, str]:
        """Read files as base64. Missing ones are left out, as in the original."""
        fetched: dict[str, str] = {}
        left = self.sandboxes.limits.limits.disk_mb << 20
        for path in paths:
            with contextlib.suppress(SandboxError):
                data = await sandbox.files.read_bytes(path)
                left -= len(data)
                if left < 0:
                    raise UsageError(
                        f"the files of fetch_files have more than {self.sandboxes.limits.limits.disk_mb} MiB"
                    )
                fetched[path] = base64.b64encode(data).decode()
        return fetched
