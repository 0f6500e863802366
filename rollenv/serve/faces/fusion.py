"""SandboxFusion: ``sandbox_fusion`` with ``SANDBOX_FUSION_ENDPOINT``, verl and ROLL with ``http://HOST:PORT/run_code``.

The paths are the original's, so whatever is set up for a SandboxFusion finds them; below ``/fusion`` they are free of
those of other faces.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, Field, StringConstraints, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rollenv.core import UsageError
from rollenv.envs.code.env import MAX_CHARACTERS, CodeEnv
from rollenv.envs.code.tests import StdioTests
from rollenv.remote.protocol import ServerFull
from rollenv.sandbox import AsyncSandbox
from rollenv.sandbox.errors import NotFound, SandboxError, SandboxFileError
from rollenv.sandbox.types import Execution, Limits, RunResult
from rollenv.serve import grading
from rollenv.serve.app import Server, body_of
from rollenv.serve.gate import Gate

T = TypeVar("T")

#: Where the routes are.
_PREFIXES = ("", "/fusion")

#: Files that are sent.
_FILES = 1000

#: Files that are fetched, cells, prompts of one answer, and programs that are graded at the same time.
_FETCHED, _CELLS, _PROMPTS, _GRADERS = 100, 1000, 1000, 2 * (os.cpu_count() or 1)

#: A grader keeps its place until it is done.
_NO_HURRY = 1e9

#: With less memory no program begins.
_LEAST_MB = 16

#: Bytes of all cells of an answer.
_LARGEST_CELLS = 32 << 20

#: Seconds of a graded run that asks for no other.
_GRADED_SECONDS = 20.0


class Language(NamedTuple):
    """How a program in a file is run."""

    suffix: str
    run: tuple[str, ...]
    compile: tuple[str, ...] = ()


_PYTHON, _FILE = "{python}", "{file}"
_NODE = Language(".js", ("node", _FILE))
LANGUAGES = {
    "python": Language(".py", (_PYTHON, _FILE)),
    "pytest": Language(".py", (_PYTHON, "-m", "pytest", "-p", "no:cacheprovider", _FILE)),
    "bash": Language(".sh", ("bash", _FILE)),
    "nodejs": _NODE,
    "javascript": _NODE,
    "js": _NODE,
    "perl": Language(".pl", ("perl", _FILE)),
    "cpp": Language(".cpp", ("./{file}.out",), ("g++", "-std=c++17", _FILE, "-o", "{file}.out")),
}

Path = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00]+$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecondsOrNone = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Files(BaseModel):
    """What goes into a sandbox before the code runs, and what is fetched after it."""

    files: dict[Path, str | None] = Field({}, max_length=_FILES)
    fetch_files: list[Path] = Field([], max_length=_FETCHED)

    def contents(self) -> dict[str, bytes]:
        """The files, decoded.

        Raises:
            UsageError: one would be outside of the working directory, or is not base64.
        """
        found = {}
        for path, data in self.files.items():
            if path.startswith("/") or ".." in path.split("/"):
                raise UsageError(f"the file {path!r:.80} would be outside of the program's folder; use a relative path")
            with _as_usage_error(f"the file {path!r:.80} is not base64"):
                found.update({} if data is None else {path: base64.b64decode(data, validate=True)})
        return found


class Program(Files):
    """The body of ``run_code``."""

    code: str
    language: str
    stdin: str | None = None
    args: list[Path] = Field([], max_length=100)
    compile_timeout: SecondsOrNone = 10.0
    run_timeout: Seconds = 10.0
    memory_limit_MB: int | None = None


class Notebook(Files):
    """The body of ``run_jupyter``."""

    cells: list[str] = Field(max_length=_CELLS)
    cell_timeout: SecondsOrNone = 0.0
    total_timeout: Seconds = 45.0
    kernel: Literal["python3"] = "python3"


class Config(BaseModel):
    """How a data set is used."""

    dataset_type: str | None = None
    language: str | None = None
    run_timeout: Seconds | None = None
    compile_timeout: SecondsOrNone | None = None
    custom_extract_logic: str | None = None
    provided_data: dict[str, Any] | list[dict[str, Any]] | None = None
    extra: dict[str, Any] = {}


class Rows(BaseModel):
    """The body of ``get_prompts`` and ``list_ids``."""

    dataset: str
    config: Config
    offset: int = Field(0, ge=0)
    limit: int = Field(1_000_000, ge=0)


class OneRow(BaseModel):
    """The body of ``get_prompt_by_id``."""

    dataset: str
    id: int | str
    config: Config


class Submission(OneRow):
    """The body of ``submit``."""

    completion: str = Field(max_length=MAX_CHARACTERS)


def routes(server: Server) -> list[BaseRoute]:
    """Running and grading programs."""
    face = _Face(server)
    posts: dict[str, Any] = {
        "run_code": (Program, face.run_code),
        "run_jupyter": (Notebook, face.run_jupyter),
        "submit": (Submission, face.submit),
        "get_prompts": (Rows, face.get_prompts),
        "get_prompt_by_id": (OneRow, face.get_prompt_by_id),
        "list_ids": (Rows, face.list_ids),
    }

    def get(answer: Callable[[], Any]) -> Any:
        async def handle(request: Request) -> Response:
            server.client(request).needs("sandboxes")
            return _json(answer())

        return handle

    found: list[BaseRoute] = []
    for prefix in _PREFIXES:
        found += [Route(f"{prefix}/{name}", face.handler(*post), methods=["POST"]) for name, post in posts.items()]
        found.append(Route(f"{prefix}/list_datasets", get(lambda: list(grading.held()))))
        found.append(Route(f"{prefix}/v1/ping", get(lambda: "pong")))
    return found


class _Face:
    """What the routes lead to.

    Args:
        server: whose sandboxes are used.
    """

    def __init__(self, server: Server):
        self.server, self.boxes = server, server.boxes
        self._gate = Gate(_GRADERS, patience=_NO_HURRY)
        self._threads = ThreadPoolExecutor(_GRADERS, thread_name_prefix="grader")

    def handler(self, model: type[BaseModel], call: Callable[[str, Any], Awaitable[Any]]) -> Any:
        """A handler of requests.

        Args:
            model: of the body.
            call: called with (owner, body); returns the answer.
        """

        async def handle(request: Request) -> Response:
            client = self.server.client(request)
            client.needs("sandboxes")
            body = await body_of(request)
            try:
                asked = model.model_validate(body)
            except ValidationError as error:
                detail = error.errors(include_url=False, include_context=False, include_input=False)
                return _json({"detail": detail}, 422)
            return await _while_connected(request, call(client.name, asked))

        return handle

    async def run_code(self, owner: str, asked: Program) -> dict[str, Any]:
        """Run a program in its own sandbox; a plain one of Python in a warm one.

        Args:
            owner: who asks.
            asked: the program.
        """
        language, files = LANGUAGES.get(asked.language), asked.contents()
        if language is None:
            names = ", ".join(LANGUAGES)
            return _broken(f"the language {asked.language!r:.40} is not offered here; there are {names}")
        try:
            limits = self._limits(asked.memory_limit_MB)
            if asked.language != "python" or files or asked.fetch_files or limits:
                return await self._run_alone(owner, asked, language, files, limits)
            ran = await self.boxes.run(owner, asked.code, stdin=asked.stdin or "", timeout=asked.run_timeout)
            return _ran(ran)
        except NotFound as error:
            return _broken(f"the language {asked.language!r} is not offered here: {error}")
        except SandboxError as error:
            return _broken(str(error))

    async def run_jupyter(self, owner: str, asked: Notebook) -> dict[str, Any]:
        """Run cells one after another in a fresh interpreter.

        Args:
            owner: who asks.
            asked: the cells.
        """
        files = asked.contents()
        try:
            async with self.boxes.brief(owner) as sandbox:
                await _write(sandbox, files)
                began = asyncio.get_running_loop().time()
                cells, status, problem = await _run_cells(sandbox, asked, self.boxes.seconds(asked.total_timeout))
                seconds = asyncio.get_running_loop().time() - began
                fetched = await self._fetched(sandbox, asked.fetch_files)
        except SandboxError as error:
            return _broken(str(error)) | {"driver": None, "cells": []}
        code = {"Finished": 0, "Error": 1}.get(status)
        driver = {"status": status, "execution_time": seconds, "return_code": code, "stdout": "", "stderr": problem}
        told = {"status": "Success" if status == "Finished" else "Failed", "message": "", "driver": driver}
        return told | {"cells": cells, "executor_pod_name": None, "files": fetched}

    async def submit(self, owner: str, asked: Submission) -> dict[str, Any]:
        """Grade a model's reply.

        Args:
            owner: who asks.
            asked: the reply, and the data set with the row, or the row itself.

        Raises:
            UsageError: it cannot be graded here.
        """
        language = asked.config.language or "python"
        if asked.config.custom_extract_logic:
            raise UsageError("custom_extract_logic is not offered: it would run on the server itself")
        if language not in LANGUAGES:
            raise UsageError(f"programs in {language!r:.40} are not graded here; there are {', '.join(LANGUAGES)}")
        code, how = grading.extracted(asked.completion, language)
        seconds = self.boxes.seconds(asked.config.run_timeout or _GRADED_SECONDS)
        runner = grading.Queued(self._runner(owner, language, asked.config.compile_timeout), self.boxes.terms.longest)

        def grade() -> list[grading.Verdict]:
            env, _ = _task(asked, asked.id, sandbox=runner, timeout=seconds)
            if language != "python" and not isinstance(env.tests, StdioTests):
                raise UsageError(f"programs in {language!r} are held to input and output only")
            every = bool(asked.config.extra.get("run_all_cases"))
            return grading.graded(env, code, runner, seconds=seconds, every=every) if code else []

        verdicts = await self._in_thread(owner, grade, runner)
        accepted = bool(verdicts) and all(verdict.passed for verdict in verdicts)
        told = {"id": asked.id, "accepted": accepted, "extracted_code": code, "extracted_type": how}
        return told | {"full_code": None, "test_code": None, "tests": [_verdict(v) for v in verdicts], "extra": None}

    async def get_prompts(self, owner: str, asked: Rows) -> list[dict[str, Any]]:
        """The questions of a data set.

        Args:
            owner: who asks.
            asked: the data set and which of its rows.
        """

        def prompts() -> list[dict[str, Any]]:
            wanted = _ids(asked)[asked.offset : asked.offset + min(asked.limit, _PROMPTS)]
            return [_prompt(asked, number) for number in wanted]

        return await self._in_thread(owner, prompts)

    async def get_prompt_by_id(self, owner: str, asked: OneRow) -> dict[str, Any]:
        """The question of a row.

        Args:
            owner: who asks.
            asked: the data set and the row.
        """
        return await self._in_thread(owner, lambda: _prompt(asked, asked.id))

    async def list_ids(self, owner: str, asked: Rows) -> list[int | str]:
        """The ids of the rows of a data set.

        Args:
            owner: who asks.
            asked: the data set.
        """
        return await self._in_thread(owner, lambda: _ids(asked)[asked.offset : asked.offset + asked.limit])

    # -- inside --------------------------------------------------------------------------------------------------------

    def _limits(self, memory_mb: int | None) -> Limits | None:
        """Those of a program that may use less memory than others."""
        usual = self.boxes.terms.limits
        if memory_mb is None or memory_mb <= 0 or memory_mb >= usual.memory_mb:
            return None
        if memory_mb < _LEAST_MB:
            raise UsageError(f"memory_limit_MB is at least {_LEAST_MB} here, or -1 for {usual.memory_mb}")
        return dataclasses.replace(usual, memory_mb=memory_mb)

    async def _run_alone(
        self, owner: str, asked: Program, language: Language, files: Mapping[str, bytes], limits: Limits | None
    ) -> dict[str, Any]:
        async with self.boxes.brief(owner, limits) as sandbox:
            compiled, ran = await self._run_file(sandbox, asked, language, files)
            fetched = await self._fetched(sandbox, asked.fetch_files)
        if asked.language == "pytest" and ran and ran.exit_code and "No module named pytest" in ran.stderr:
            return _broken("the language 'pytest' is not offered here: pytest is not installed")
        return _ran(ran, compiled) | {"files": fetched}

    async def _run_file(
        self, sandbox: AsyncSandbox, asked: Program, language: Language, files: Mapping[str, bytes]
    ) -> tuple[RunResult | None, RunResult | None]:
        """What compiling it said, and running it."""
        name = f"tmp{secrets.token_hex(4)}{language.suffix}"
        python = sys.executable if self.boxes.terms.backend == "local" else "python3"
        await _write(sandbox, {**files, name: asked.code.encode()})
        compiled = None
        if language.compile:
            words = [word.format(file=name) for word in language.compile]
            compiled = await _command(sandbox, words, "", self.boxes.seconds(asked.compile_timeout or None))
            if compiled.exit_code or compiled.timed_out:
                return compiled, None
        words = [word.format(file=name, python=python) for word in language.run]
        words += asked.args if asked.language == "pytest" else []
        return compiled, await _command(sandbox, words, asked.stdin or "", self.boxes.seconds(asked.run_timeout))

    async def _fetched(self, sandbox: AsyncSandbox, paths: Iterable[str]) -> dict[str, str]:
        """Files in base64. What is none is left out, as in the original."""
        found: dict[str, str] = {}
        left = self.boxes.terms.limits.disk_mb << 20
        for path in paths:
            with contextlib.suppress(SandboxError):
                data = await sandbox.files.read_bytes(path)
                left -= len(data)
                if left < 0:
                    raise UsageError(f"the files of fetch_files have more than {self.boxes.terms.limits.disk_mb} MiB")
                found[path] = base64.b64encode(data).decode()
        return found

    def _runner(self, owner: str, language: str, compile_timeout: float | None) -> grading.Run:
        """Runs programs of a grader."""

        async def run(code: str, stdin: str, timeout: float | None) -> RunResult:
            if language == "python":
                return await self.boxes.run(owner, code, stdin=stdin, timeout=timeout)
            seconds = self.boxes.seconds(timeout)
            program = Program(code=code, language=language, stdin=stdin, run_timeout=seconds)
            program.compile_timeout = compile_timeout or _GRADED_SECONDS
            async with self.boxes.brief(owner) as sandbox:
                compiled, ran = await self._run_file(sandbox, program, LANGUAGES[language], {})
            found = ran or compiled
            assert found is not None
            return found

        return run

    async def _in_thread(self, owner: str, call: Callable[[], T], runner: grading.Queued | None = None) -> T:
        """Call what takes time. Owners take turns."""
        terms = self.boxes.terms
        if self._gate.waiting >= terms.waiting:
            raise ServerFull(f"{self._gate.waiting} programs wait to be graded already", retry_after=1.0)
        async with self._gate.turn(owner):
            try:
                async with asyncio.timeout(terms.longest):
                    return await asyncio.get_running_loop().run_in_executor(self._threads, call)
            except TimeoutError:
                text = f"it was not graded within {terms.longest:g} s; send fewer tests, or a shorter run_timeout"
                raise UsageError(text) from None
            except SandboxError as error:
                raise UsageError(f"it could not be graded: {error}") from error
            finally:
                if runner is not None:
                    runner.close()


# -- programs ----------------------------------------------------------------------------------------------------------


async def _write(sandbox: AsyncSandbox, files: Mapping[str, bytes]) -> None:
    try:
        if files:
            await sandbox.files.write_many(files)
    except SandboxFileError as error:
        raise UsageError(f"the files cannot be written: {str(error)!r:.200}") from error


async def _command(sandbox: AsyncSandbox, words: list[str], stdin: str, seconds: float) -> RunResult:
    done = await sandbox.commands.run(words, stdin=stdin, timeout=seconds)
    kind = done.error.name if done.error else ""
    code = 128 - done.exit_code if kind not in ("", "Exit") and done.exit_code > 128 else done.exit_code
    flags = (kind == "Timeout", done.seconds, kind == "OutputLimit", kind == "MemoryLimit")
    return RunResult(done.stdout, done.stderr, code, *flags)


def _ran(ran: RunResult | None, compiled: RunResult | None = None) -> dict[str, Any]:
    """The answer to ``run_code``."""
    results = [None if one is None else _told(one) for one in (compiled, ran)]
    success = all(one is None or one["return_code"] == 0 for one in results)
    told: dict[str, Any] = {"status": "Success" if success else "Failed", "message": ""}
    told |= {"compile_result": results[0], "run_result": results[1]}
    return told | {"executor_pod_name": None, "files": {}}


def _told(ran: RunResult) -> dict[str, Any]:
    reasons = {"more output": ran.truncated, "more memory": ran.out_of_memory}
    said = [f"it used {reason} than the limit and was stopped\n" for reason, holds in reasons.items() if holds]
    code = (ran.exit_code or -9) if said else ran.exit_code
    return {
        "status": "TimeLimitExceeded" if ran.timed_out else "Finished",
        "execution_time": ran.seconds,
        "return_code": None if ran.timed_out else code,
        "stdout": ran.stdout,
        "stderr": ran.stderr + "".join(said),
    }


def _broken(message: str) -> dict[str, Any]:
    """The answer where no program was run."""
    return _ran(None) | {"status": "SandboxError", "message": message}


async def _run_cells(sandbox: AsyncSandbox, asked: Notebook, total: float) -> tuple[list[dict[str, Any]], str, str]:
    """The cells that ran, how the last one ended, and why it was the last, if it should not have been."""
    loop, size = asyncio.get_running_loop(), 0
    cells: list[dict[str, Any]] = []
    end = loop.time() + total
    for number, cell in enumerate(asked.cells):
        left = end - loop.time()
        if left <= 0:
            return cells, "TimeLimitExceeded", f"all cells together ran longer than {total:g} s"
        done = await sandbox.run_code(cell, timeout=min(left, asked.cell_timeout or left))
        cells.append(_cell(done))
        size += len(json.dumps(cells[-1]))
        if done.error and done.error.name == "Timeout" and not done.error.traceback:
            return cells, "TimeLimitExceeded", f"cell {number}: {done.error.value}"
        if done.exit_code is not None:
            value = done.error.value if done.error else f"it exited with {done.exit_code}"
            return cells, "Error", f"cell {number} ended the interpreter: {value}"
        if size > _LARGEST_CELLS:
            return cells, "Error", f"cell {number}: the cells said more than {_LARGEST_CELLS} bytes"
    return cells, "Finished", ""


def _cell(done: Execution) -> dict[str, Any]:
    error, errors, stderr = done.error, [], "".join(done.logs.stderr)
    if error is not None:
        errors.append({"ename": error.name, "evalue": error.value, "traceback": error.traceback.splitlines()})
        stderr = stderr.removesuffix("\n").removesuffix(error.traceback.removesuffix("\n"))
    shown = [_strict(result._repr_mimebundle_()) for result in done.results]
    return {"stdout": "".join(done.logs.stdout), "stderr": stderr, "display": shown, "error": errors}


def _strict(bundle: dict[str, Any]) -> dict[str, Any]:
    """Without what JSON cannot say."""
    with contextlib.suppress(ValueError):
        json.dumps(bundle.get("application/json"), allow_nan=False)
        return bundle
    return {name: value for name, value in bundle.items() if name != "application/json"}


# -- data sets ---------------------------------------------------------------------------------------------------------


def _held(dataset: str, **settings: Any) -> CodeEnv:
    """The environment of a data set that this machine holds."""
    if dataset not in (held := grading.held()):
        there = ", ".join(held) or "none below $ROLLENV_DATA"
        raise UsageError(f"there is no data set {dataset!r:.60} ({there}); send the row in config.provided_data")
    env = held[dataset].make(**settings).unwrapped
    assert isinstance(env, CodeEnv)
    return env


def _provided(config: Config) -> list[dict[str, Any]]:
    return config.provided_data if isinstance(config.provided_data, list) else [config.provided_data or {}]


def _task(asked: OneRow | Rows, number: int | str, **settings: Any) -> tuple[CodeEnv, str]:
    """An environment at the task that is asked for, and its question."""
    config = asked.config
    if not config.provided_data:
        env = _held(asked.dataset, **settings)
        count = env.num_tasks() or 0
        if not isinstance(number, int) or not 0 <= number < count:
            raise UsageError(f"{asked.dataset} has no row {number!r:.40}; its ids are 0 to {count - 1}")
        return env, env.reset(options={"index": number})[0]
    rows = _provided(config)
    if isinstance(config.provided_data, list):
        rows = [row for row in rows if row.get("id", row.get("task_id")) == number]
    if not rows:
        raise UsageError(f"config.provided_data has no row with the id {number!r:.40}")
    return grading.task(config.dataset_type or "CommonOJDataset", rows[0], **settings)


def _ids(asked: Rows) -> list[int | str]:
    if not asked.config.provided_data:
        return list(range(_held(asked.dataset).num_tasks() or 0))
    ids = [row.get("id", row.get("task_id")) for row in _provided(asked.config)]
    return [number for number in ids if isinstance(number, int | str)]


def _prompt(asked: OneRow | Rows, number: int | str) -> dict[str, Any]:
    return {"id": number, "prompt": _task(asked, number)[1], "labels": {}}


def _verdict(verdict: grading.Verdict) -> dict[str, Any]:
    ran = verdict.ran
    if ran is not None and verdict.test is None:  # its output is the grader's
        ran = dataclasses.replace(ran, stdout="", exit_code=0 if verdict.passed else ran.exit_code or 1)
    return {"passed": verdict.passed, "exec_info": _ran(ran), "test_info": verdict.test}


# -- answers -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _as_usage_error(text: str) -> Any:
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{text}: {error}") from error


def _json(value: Any, status: int = 200) -> Response:
    """In ASCII: programs may show halves of characters, which UTF-8 has no bytes for."""
    return Response(json.dumps(value), status, media_type="application/json")


async def _while_connected(request: Request, work: Awaitable[Any]) -> Response:
    """The answer, unless the client leaves before: then what runs for it ends."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return _json(await working) if working.done() else Response(status_code=499)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
