"""Requests and answers, and how programs of each language are run."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, StringConstraints

from rollenv.core.errors import UsageError
from rollenv.sandbox import AsyncSandbox
from rollenv.sandbox.errors import SandboxFileError
from rollenv.sandbox.types import RunResult

#: Maximum files that are sent, files that are fetched, and cells.
_FILES, _FETCHED, _CELLS = 1000, 100, 1000

Path = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00]+$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecondsOrNone = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Files(BaseModel):
    """Files to write into a sandbox before the code runs, and files to fetch afterwards."""

    files: dict[Path, str | None] = Field({}, max_length=_FILES)
    fetch_files: list[Path] = Field([], max_length=_FETCHED)

    def contents(self) -> dict[str, bytes]:
        """Decode the files.

        Raises:
            UsageError: a path is outside of the working directory, or a file is not base64.
        """
        contents: dict[str, bytes] = {}
        for path, data in self.files.items():
            if path.startswith("/") or ".." in path.split("/"):
                raise UsageError(f"the file {path!r:.80} would be outside of the program's folder; use a relative path")
            try:
                if data is not None:
                    contents[path] = base64.b64decode(data, validate=True)
            except ValueError as error:
                raise UsageError(f"the file {path!r:.80} is not base64: {error}") from error
        return contents


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


class Language(NamedTuple):
    """Commands that compile and run a program in a file."""

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

#: Maximum bytes of all cells of an answer.
_LARGEST_CELLS = 32 << 20


async def write_files(sandbox: AsyncSandbox, files: Mapping[str, bytes]) -> None:
    """Write the files of a request."""
    try:
        if files:
            await sandbox.files.write_many(files)
    except SandboxFileError as error:
        raise UsageError(f"the files cannot be written: {str(error)!r:.200}") from error


async def run_words(sandbox: AsyncSandbox, words: list[str], stdin: str, seconds: float) -> RunResult:
    """Run a command of several words."""
    done = await sandbox.commands.run(words, stdin=stdin, timeout=seconds)
    kind = done.error.name if done.error else ""
    code = 128 - done.exit_code if kind not in ("", "Exit") and done.exit_code > 128 else done.exit_code
    flags = (kind == "Timeout", done.seconds, kind == "OutputLimit", kind == "MemoryLimit")
    return RunResult(done.stdout, done.stderr, code, *flags)


def outcome(ran: RunResult | None, compiled: RunResult | None = None) -> dict[str, Any]:
    """Build the answer to ``run_code``."""
    results = [None if one is None else _result(one) for one in (compiled, ran)]
    success = all(one is None or one["return_code"] == 0 for one in results)
    return {
        "status": "Success" if success else "Failed",
        "message": "",
        "compile_result": results[0],
        "run_result": results[1],
        "executor_pod_name": None,
        "files": {},
    }


def _result(ran: RunResult) -> dict[str, Any]:
    reasons = {"more output": ran.truncated, "more memory": ran.out_of_memory}
    stops = [f"it used {reason} than the limit and was stopped\n" for reason, holds in reasons.items() if holds]
    code = (ran.exit_code or -9) if stops else ran.exit_code
    return {
        "status": "TimeLimitExceeded" if ran.timed_out else "Finished",
        "execution_time": ran.seconds,
        "return_code": None if ran.timed_out else code,
        "stdout": ran.stdout,
        "stderr": ran.stderr + "".join(stops),
    }


def broken(message: str) -> dict[str, Any]:
    """Build the answer for a program that was not run."""
    return outcome(None) | {"status": "SandboxError", "message": message}


async def run_cells(sandbox: AsyncSandbox, params: Notebook, total: float) -> tuple[list[dict[str, Any]], str, str]:
    """Run cells one after another.

    Args:
        total: maximum seconds of all cells together.

    Returns:
        The cells that ran, the status of the last one, and the reason if later ones did not run.
    """
    loop, size = asyncio.get_running_loop(), 0
    cells: list[dict[str, Any]] = []
    end = loop.time() + total
    for number, cell in enumerate(params.cells):
        left = end - loop.time()
        if left <= 0:
            return cells, "TimeLimitExceeded", f"all cells together ran longer than {total:g} s"
        done = await sandbox.run_code(cell, timeout=min(left, params.cell_timeout or left))
        error, errors, stderr = done.error, [], "".join(done.logs.stderr)
        if error is not None:
            errors.append({"ename": error.name, "evalue": error.value, "traceback": error.traceback.splitlines()})
            stderr = stderr.removesuffix("\n").removesuffix(error.traceback.removesuffix("\n"))
        shown = [_without_nan(result._repr_mimebundle_()) for result in done.results]
        cells.append({"stdout": "".join(done.logs.stdout), "stderr": stderr, "display": shown, "error": errors})
        size += len(json.dumps(cells[-1]))
        if done.error and done.error.name == "Timeout" and not done.error.traceback:
            return cells, "TimeLimitExceeded", f"cell {number}: {done.error.value}"
        if done.exit_code is not None:
            value = done.error.value if done.error else f"it exited with {done.exit_code}"
            return cells, "Error", f"cell {number} ended the interpreter: {value}"
        if size > _LARGEST_CELLS:
            return cells, "Error", f"cell {number}: the cells wrote more than {_LARGEST_CELLS} bytes"
    return cells, "Finished", ""


def _without_nan(bundle: dict[str, Any]) -> dict[str, Any]:
    """Remove JSON data with NaN or infinite numbers, which standard JSON lacks."""
    with contextlib.suppress(ValueError):
        json.dumps(bundle.get("application/json"), allow_nan=False)
        return bundle
    return {name: value for name, value in bundle.items() if name != "application/json"}
