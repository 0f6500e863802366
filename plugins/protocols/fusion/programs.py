"""Runs programs and grades them on rows of data sets of this machine or of the request."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, StringConstraints

from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import UsageError
from rollenv.core.parsing import code_blocks
from rollenv.core.registry import list_envs
from rollenv.envs.code import CODE
from rollenv.envs.code.env import MAX_CHARACTERS, CodeEnv
from rollenv.envs.code.tests import StdioTests, run_tests
from rollenv.envs.data.rows import is_local, read_json
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
    """Write the files of a request.

    Raises:
        UsageError: the files cannot be written.
    """
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


Run = Callable[[str, str, float | None], Awaitable[RunResult]]
Row = Mapping[str, Any]

#: Maximum tests of one program, and maximum characters of tests that are statements.
_MOST_TESTS, _MOST_STATEMENTS = 1000, MAX_CHARACTERS
_FENCE = "`" * 8
_STREAMS = (("input", "stdin"), ("output", "stdout"))

#: Maximum prompts of one answer, and the default type of rows.
_PROMPTS, _TYPE = 1000, "CommonOJDataset"


class Queued:
    """Lets a grader in a thread run programs with a coroutine of the event loop.

    Args:
        run: called with the program, the standard input and the timeout.
        patience: maximum seconds to wait for a run.
    """

    def __init__(self, run: Run, patience: float):
        self._run, self._patience, self._loop = run, patience, asyncio.get_running_loop()
        self._running: concurrent.futures.Future[RunResult] | None = None
        self._over = False
        self.last: RunResult | None = None

    def run(self, code: str, *, stdin: str = "", timeout: float | None = None) -> RunResult:
        """See :class:`rollenv.sandbox.types.Runner`."""

        async def one() -> RunResult:
            return await self._run(code, stdin, timeout)

        if self._over:
            raise concurrent.futures.CancelledError
        self._running = asyncio.run_coroutine_threadsafe(one(), self._loop)
        self.last = self._running.result(self._patience)
        return self.last

    def close(self) -> None:
        """Cancel the running program and refuse others."""
        self._over = True
        if self._running is not None:
            self._running.cancel()


@dataclass(frozen=True)
class Verdict:
    """The verdict on one test, or on all statements together."""

    passed: bool
    ran: RunResult | None
    test: dict[str, Any] | None
    """Input and output; None for statements, where the program's output is hidden from clients."""


def graded(env: CodeEnv, code: str, runner: Queued, *, seconds: float, every: bool) -> list[Verdict]:
    """Run the tests of a task on a program, up to the first failed one unless ``every`` is true."""
    tests = env.tests
    if not isinstance(tests, StdioTests):
        reward = env.step(f"{_FENCE}python\n{code}\n{_FENCE}")[1]
        return [Verdict(reward == 1.0, runner.last, None)]
    verdicts = []
    for given, wanted in zip(tests.inputs, tests.outputs, strict=True):
        passed = bool(run_tests(code, StdioTests((given,), (wanted,)), runner, seconds))
        test = {"input": {"stdin": given}, "output": {"stdout": wanted}}
        verdicts.append(Verdict(passed, runner.last, test))
        if not passed and not every:
            break
    return verdicts


def extracted(completion: str, language: str) -> tuple[str, str]:
    """Extract the program from a model's reply: the first code block in a language, else the first one, else all.

    Returns:
        The program, and "fenced", "heuristic" or "empty".
    """
    blocks = [(name, block.content) for name, block in code_blocks(completion)]
    found = [text for name, text in blocks if name == language] or [text for _, text in blocks]
    if found:
        return found[0], "fenced"
    return (completion, "heuristic") if completion.strip() else ("", "empty")


# -- tasks -------------------------------------------------------------------------------------------------------------


def held() -> dict[str, EnvSpec]:
    """List the data sets of programs below ``$ROLLENV_DATA`` by environment id."""
    specs = [spec for spec in list_envs("code:") if spec.entry_point == CODE]
    return {
        spec.id: spec for spec in specs if is_local(spec.kwargs.get("dataset_name", ""), spec.kwargs.get("split", ""))
    }


def _given_task(kind: str, row: Row, **settings: Any) -> tuple[CodeEnv, str]:
    """Build an environment with one row of a client's data; return it with its question."""
    if kind not in KINDS:
        raise UsageError(f"data of the type {kind!r:.60} cannot be graded here; there are {', '.join(KINDS)}")
    try:
        env = CodeEnv(dataset=[KINDS[kind](row)], question_key="question", test_key="tests", max_tests=None, **settings)
        question, _ = env.reset(options={"index": 0})
        tests = env.tests
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"this is not data of a {kind}: {type(error).__name__} {str(error)!r:.200}") from error
    if isinstance(tests, StdioTests) and len(tests.inputs) > _MOST_TESTS:
        raise UsageError(f"a program is held to at most {_MOST_TESTS} tests, not to {len(tests.inputs)}")
    return env, question


def _stdio(row: Row) -> dict[str, Any]:
    cases = _parsed(row["test"])
    for case in cases:
        if set(case["input"]) - {"stdin"} or set(case["output"]) != {"stdout"}:
            raise ValueError("a test has the input stdin and the output stdout; files are not compared here")
    inputs, outputs = ([case[side].get(name, "") for case in cases] for side, name in _STREAMS)
    if not all(isinstance(text, str) for text in (*inputs, *outputs)):
        raise TypeError("stdin and stdout are texts")
    return _asked(row, {"inputs": inputs, "outputs": outputs})


def _contest(row: Row) -> dict[str, Any]:
    tests = _parsed(row["test"])
    return _asked(row, _parsed(tests.get("input_output", tests)))


def _statements(row: Row) -> dict[str, Any]:
    labels = _parsed(row.get("labels") or {})
    setup = {name: labels.get(name, row.get(name)) for name in ("test_imports", "test_setup_code")}
    tests = _parsed(row["test"] if "test" in row else row["test_list"])
    if not isinstance(tests, list) or not all(isinstance(one, str) for one in tests):
        raise TypeError("test is a list of statements")
    _bounded("".join(tests))
    return _asked(row, tests) | setup


def _function(row: Row) -> dict[str, Any]:
    name, prompt = row["entry_point"], row["prompt"]
    if not (isinstance(name, str) and name.isidentifier() and isinstance(prompt, str)):
        raise TypeError("entry_point is the name of a function, and prompt a text")
    return {"question": prompt, "tests": _bounded(row["test"]), "entry_point": name}


def _asked(row: Row, tests: Any) -> dict[str, Any]:
    question = str(row.get("content", row.get("text", ""))).strip() or "(The question was not sent.)"
    return {"question": question, "tests": tests}


def _bounded(test: Any) -> str:
    if not isinstance(test, str) or len(test) > _MOST_STATEMENTS:
        raise TypeError(f"a test is a text of at most {_MOST_STATEMENTS} characters")
    return test


def _parsed(value: Any) -> Any:
    """Parse a value that may be JSON text, as in some data sets."""
    return read_json(value) if isinstance(value, str) else value


#: Converters of rows by the original's name of the data type.
KINDS: dict[str, Callable[[Row], dict[str, Any]]] = {
    "CommonOJDataset": _stdio,
    "LiveCodeBenchDataset": _contest,
    "MBPPDataset": _statements,
    "HumanEvalDataset": _function,
}


def task(params: OneRow, **settings: Any) -> tuple[CodeEnv, str]:
    """Create an environment at the requested row.

    Returns:
        (the environment, its question).

    Raises:
        UsageError: there is no such row.
    """
    config, number = params.config, params.id
    if not config.provided_data:
        env = _held(params.dataset, **settings)
        count = env.num_tasks() or 0
        if not isinstance(number, int) or not 0 <= number < count:
            raise UsageError(f"{params.dataset} has no row {number!r:.40}; its ids are 0 to {count - 1}")
        return env, env.reset(options={"index": number})[0]
    rows = _provided(config)
    if isinstance(config.provided_data, list):
        rows = [row for row in rows if _id(row) == number]
    if not rows:
        raise UsageError(f"config.provided_data has no row with the id {number!r:.40}")
    return _given_task(config.dataset_type or _TYPE, rows[0], **settings)


def prompts(params: Rows) -> list[dict[str, Any]]:
    """List the questions of a data set, at most a thousand."""
    config, some = params.config, slice(params.offset, params.offset + min(params.limit, _PROMPTS))
    if not config.provided_data:
        env = _held(params.dataset)
        return [question_of(number, env.reset(options={"index": number})[0]) for number in ids(params)[some]]
    rows = [row for row in _provided(config) if isinstance(_id(row), int | str)][some]
    return [question_of(_id(row), _given_task(config.dataset_type or _TYPE, row)[1]) for row in rows]


def ids(params: Rows) -> list[int | str]:
    """List the ids of the rows of a data set."""
    if not params.config.provided_data:
        return list(range(_held(params.dataset).num_tasks() or 0))
    return [number for number in map(_id, _provided(params.config)) if isinstance(number, int | str)]


def verdict(found: Verdict) -> dict[str, Any]:
    """Convert a verdict to the original's format."""
    ran = found.ran
    if ran is not None and found.test is None:  # hide the grader's output
        ran = dataclasses.replace(ran, stdout="", exit_code=0 if found.passed else ran.exit_code or 1)
    return {"passed": found.passed, "exec_info": outcome(ran), "test_info": found.test}


def _held(dataset: str, **settings: Any) -> CodeEnv:
    """Build the environment of a data set of this machine."""
    specs = held()
    if dataset not in specs:
        names = ", ".join(specs) or "none below $ROLLENV_DATA"
        raise UsageError(f"there is no data set {dataset!r:.60} ({names}); send the row in config.provided_data")
    env = specs[dataset].make(**settings).unwrapped
    assert isinstance(env, CodeEnv)
    return env


def _provided(config: Config) -> list[dict[str, Any]]:
    return config.provided_data if isinstance(config.provided_data, list) else [config.provided_data or {}]


def _id(row: dict[str, Any]) -> Any:
    return row.get("id", row.get("task_id"))


def question_of(number: Any, question: str) -> dict[str, Any]:
    """Build the answer with a question."""
    return {"id": number, "prompt": question, "labels": {}}
