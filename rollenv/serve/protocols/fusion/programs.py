"""Runs programs, and tells how they ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from rollenv.core import UsageError
from rollenv.sandbox import AsyncSandbox
from rollenv.sandbox.errors import SandboxFileError
from rollenv.sandbox.types import Execution, RunResult
from rollenv.serve.protocols.fusion.schemas import Notebook


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
