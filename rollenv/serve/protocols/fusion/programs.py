"""Runs programs, and tells how they ended."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, StringConstraints

from rollenv.core import UsageError
from rollenv.envs.code.env import MAX_CHARACTERS
from rollenv.sandbox import AsyncSandbox
from rollenv.sandbox.errors import SandboxFileError
from rollenv.sandbox.types import Execution, RunResult

#: Files that are sent, files that are fetched, and cells.
_FILES, _FETCHED, _CELLS = 1000, 100, 1000

Path = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00]+$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecondsOrNone = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Files(BaseModel):
    """Files that go into a sandbox before the code runs, and files to fetch after it."""

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
            try:
                found.update({} if data is None else {path: base64.b64decode(data, validate=True)})
            except ValueError as error:
                raise UsageError(f"the file {path!r:.80} is not base64: {error}") from error
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
    """The settings of a data set."""

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


class Language(NamedTuple):
    """The commands that compile and run a program in a file."""

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

#: Bytes of all cells of an answer.
_LARGEST_CELLS = 32 << 20


async def write_files(sandbox: AsyncSandbox, files: Mapping[str, bytes]) -> None:
    """Write the files of a request.

    Raises:
        UsageError: they cannot be written.
    """
    try:
        if files:
            await sandbox.files.write_many(files)
    except SandboxFileError as error:
        raise UsageError(f"the files cannot be written: {str(error)!r:.200}") from error


async def run_words(sandbox: AsyncSandbox, words: list[str], stdin: str, seconds: float) -> RunResult:
    """Run a program.

    Args:
        words: the program and its arguments.
    """
    done = await sandbox.commands.run(words, stdin=stdin, timeout=seconds)
    kind = done.error.name if done.error else ""
    code = 128 - done.exit_code if kind not in ("", "Exit") and done.exit_code > 128 else done.exit_code
    flags = (kind == "Timeout", done.seconds, kind == "OutputLimit", kind == "MemoryLimit")
    return RunResult(done.stdout, done.stderr, code, *flags)


def outcome(ran: RunResult | None, compiled: RunResult | None = None) -> dict[str, Any]:
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


def broken(message: str) -> dict[str, Any]:
    """The answer where no program was run."""
    return outcome(None) | {"status": "SandboxError", "message": message}


async def run_cells(sandbox: AsyncSandbox, asked: Notebook, total: float) -> tuple[list[dict[str, Any]], str, str]:
    """Run cells one after another.

    Args:
        total: seconds for all of them.

    Returns:
        The cells that ran, how the last one ended, and why it was the last, if it should not have been.
    """
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
