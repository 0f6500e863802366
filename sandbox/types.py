"""Limits, results, the interface of runners, and the conversion of a kernel's reports to results."""

from __future__ import annotations

import codecs
import json
import signal
import stat
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from rollenv.sandbox.errors import InvalidArgument
from rollenv.sandbox.inside.protocol import MIME, Finished


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one run."""

    seconds: float = 10.0
    """Wall-clock time of a run without its own timeout, and processor time of background work between requests."""
    memory_mb: int = 1024
    """Memory of all processes and files of a sandbox together, and address space of each Python process (other
    programs reserve far more than they use)."""
    output_bytes: int = 4 * 2**20
    """Bytes of standard output and of standard error, each at most 32 MiB. A run that writes more is stopped."""
    processes: int = 64
    """Maximum processes and threads."""
    disk_mb: int = 64
    """Size of the scratch folder, which is in memory, and of the largest file in it."""
    files: int = 10_000
    """Maximum files and folders in the scratch folder."""
    open_files: int = 256
    """Maximum open file descriptors of each process."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"the limit {name} must be above 0, got {getattr(self, name)!r}")
        if self.output_bytes > 32 << 20:
            raise InvalidArgument(f"output_bytes must be at most {32 << 20}, got {self.output_bytes}; write to a file")


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run."""

    stdout: str
    stderr: str
    exit_code: int
    """Exit status; negative for the signal that ended the program."""
    timed_out: bool
    seconds: float
    """Wall-clock time in seconds."""
    truncated: bool
    """True if the program was stopped because of the output limit."""
    out_of_memory: bool = False
    """True if the program was stopped because of the memory limit."""


class Runner(Protocol):
    """Runs Python programs, each in a fresh interpreter. Threads may share one."""

    def run(self, code: str, *, stdin: str = "", timeout: float | None = None) -> RunResult:
        """Run a program until it ends or reaches a limit. A failure of the program is not an exception here.

        Args:
            code: the program, which runs as ``__main__``.
            timeout: seconds; by default the runner's limit.
        """
        ...

    def close(self) -> None:
        """Release all resources; further calls have no effect."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """One rich result in all representations of the value; binary ones are base64."""

    text: str = ""
    html: str | None = None
    markdown: str | None = None
    svg: str | None = None
    png: str | None = None
    jpeg: str | None = None
    pdf: str | None = None
    latex: str | None = None
    json: Any = None
    javascript: str | None = None
    data: Any = None
    """Columns of a pandas table with their values."""
    chart: Any = None
    """Elements of a matplotlib figure; see :func:`rollenv.sandbox.inside.charts.of_figure`."""
    is_main_result: bool = False
    """True for the value of the last expression, false for displayed values."""
    extra: dict[str, str] = field(default_factory=dict)
    """Representations with other MIME types, as text."""

    def formats(self) -> list[str]:
        """Return the names of the representations."""
        names = [f.name for f in fields(self) if f.name not in ("is_main_result", "extra")]
        return [name for name in names if getattr(self, name) not in (None, "")] + list(self.extra)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Let a notebook show the result like the value itself."""
        return {MIME[name]: getattr(self, name) for name in self.formats() if name in MIME} | self.extra


@dataclass(frozen=True, slots=True)
class Logs:
    """The output, in the pieces in which it arrived."""

    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ExecutionError:
    """The failure of code: an exception, or ``Timeout``, ``OutputLimit``, ``MemoryLimit``, ``ProcessLimit``,
    ``Killed``, ``Exit``, ``ReportViolation`` (it tampered with its report) or ``SandboxDied`` (it killed the sandbox).
    """

    name: str
    value: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of running code."""

    results: list[Result]
    logs: Logs
    error: ExecutionError | None
    exit_code: int | None
    """Exit code of the process, negative for a signal; None for a context that keeps running."""
    seconds: float
    execution_count: int | None = None
    """Number of cells that the context's process has run, including this one; None for a standalone program."""

    @property
    def text(self) -> str | None:
        """The value of the last expression as text."""
        return next((r.text for r in self.results if r.is_main_result), None)


@dataclass(frozen=True, slots=True)
class Context:
    """A context, which keeps the state of cells."""

    name: str
    language: str
    cwd: str | None
    """Initial working directory; None for the scratch folder."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command."""

    stdout: str
    stderr: str
    exit_code: int
    """Exit code in the shell's convention: 128 plus the signal's number if a signal ended it."""
    error: ExecutionError | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link."""

    name: str
    path: str
    type: str
    """``file``, ``dir`` or ``link``."""
    size: int
    """Size in bytes."""
    mode: int
    modified: float = 0.0
    """Seconds since 1970."""
    owner: int = 0
    """Numbers of the user and the group."""
    group: int = 0
    target: str | None = None
    """The target of a link."""

    @property
    def permissions(self) -> str:
        """The mode in the format of ``ls``."""
        return stat.filemode({"dir": stat.S_IFDIR, "link": stat.S_IFLNK}.get(self.type, stat.S_IFREG) | self.mode)


@dataclass(frozen=True, slots=True)
class Process:
    """A running context or command."""

    pid: int
    """Process id in the sandbox."""
    command: tuple[str, ...]
    """The first words of a command; empty for a context."""
    context: str | None
    """Name of a context."""
    seconds: float
    """Time since the start."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The current use of a sandbox. Memory and disk are in bytes."""

    cpu_count: int
    cpu_seconds: float
    """Processor time of running processes and of children that they waited for."""
    cpu_percent: float
    """Per cent of one processor since the last call, or the start."""
    memory_used: int
    memory_total: int
    disk_used: int
    """Bytes used in the scratch folder."""
    disk_total: int
    processes: int
    timestamp: float
    """Seconds since 1970."""


Json = dict[str, Any]
OnText = Callable[[str], None]
OnResult = Callable[[Result], None]
OnError = Callable[[ExecutionError], None]


def to_bytes(text: str | bytes) -> bytes:
    """Encode text as UTF-8: surrogates that stand for bytes (surrogateescape) as these, others as if valid."""
    if isinstance(text, str):
        try:
            return text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return text.encode("utf-8", "surrogatepass")
    return bytes(memoryview(text))  # a number would be so many zeros


#: Maximum characters, depth and elements of a JSON document from code.
MAX_JSON, MAX_DEPTH, MAX_NODES = 8 << 20, 64, 200_000
#: Representations with their own field.
_NAMES = {field.name for field in fields(Result)} - {"extra"}


class Output:
    """Collects output and forwards it as text, split only between characters.

    Args:
        errors: what becomes of bytes that are not UTF-8, as in ``bytes.decode``.
    """

    def __init__(
        self,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        errors: str = "backslashreplace",
    ):
        self.on_result = on_result
        self.pieces: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._callbacks: dict[str, list[OnText]] = {"stdout": [], "stderr": []}
        self.listen(on_stdout, on_stderr)
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder(errors) for name in self.pieces}

    def listen(self, on_stdout: OnText | None, on_stderr: OnText | None) -> None:
        """Add callbacks for later output."""
        for name, callback in (("stdout", on_stdout), ("stderr", on_stderr)):
            if callback is not None:
                self._callbacks[name].append(callback)

    def take(self, name: str, data: bytes, final: bool = False) -> None:
        """Decode the next bytes of a stream, which may end inside a character."""
        if text := self._decoders[name].decode(data, final):
            self.pieces[name].append(text)
            for callback in self._callbacks[name]:
                callback(text)

    def show(self, representations: Json) -> None:
        """Forward a result."""
        if self.on_result:
            self.on_result(result(representations))

    def text(self, name: str) -> str:
        """Return the text of a stream so far."""
        return "".join(self.pieces[name])

    def end(self) -> None:
        """Decode incomplete characters at the end of the streams."""
        for name in self.pieces:
            self.take(name, b"", True)


def died() -> Finished:
    """Build the report of a run that killed its sandbox."""
    error = {"name": "SandboxDied", "value": "the sandbox ended while this ran in it", "traceback": ""}
    return Finished(error=error, signal=int(signal.SIGKILL))


def no_process(message: str) -> Finished:
    """Build the report of code for which no process could be started."""
    return Finished(error={"name": "ProcessLimit", "value": message, "traceback": ""}, signal=int(signal.SIGKILL))


def execution(done: Finished, output: Output, seconds: float) -> Execution:
    """Build the result of a cell with a time limit of ``seconds``."""
    output.end()
    results = [result(representations) for representations in done.results]
    logs = Logs(output.pieces["stdout"], output.pieces["stderr"])
    code = exit_code(done) if done.process_ended else None
    return Execution(results, logs, _error(done, seconds), code, done.seconds, done.count)


def command_result(done: Finished, output: Output, seconds: float) -> CommandResult:
    """Build the result of a command with a time limit of ``seconds``."""
    output.end()
    code = 128 + done.signal if done.signal else done.exit_code or 0
    return CommandResult(output.text("stdout"), output.text("stderr"), code, _error(done, seconds), done.seconds)


def exit_code(done: Finished) -> int:
    """Return the exit code of a process, negative for the signal that ended it."""
    return -done.signal if done.signal else done.exit_code or 0


def result(representations: Json) -> Result:
    """Build a result from a kernel's message."""
    known = {name: text for name, text in representations.items() if name in _NAMES}
    for name in ("json", "data", "chart"):
        if name in known:
            known[name] = parsed_json(known[name])
    return Result(**known, extra={n: text for n, text in representations.items() if n not in _NAMES})


def _error(done: Finished, seconds: float) -> ExecutionError | None:
    if done.out_of_memory:
        return ExecutionError("MemoryLimit", "it used more memory than the limit and was stopped")
    if done.truncated:
        return ExecutionError("OutputLimit", "it wrote more output than the limit and was stopped")
    if done.timed_out:
        return ExecutionError("Timeout", f"it ran longer than {seconds:g} s and was stopped")
    if done.error:
        return ExecutionError(*(done.error[name] for name in ("name", "value", "traceback")))
    if done.signal:
        return ExecutionError("Killed", f"a signal ended it: {_signal_name(done.signal)}")
    if done.process_ended and done.exit_code:
        return ExecutionError("Exit", f"it exited with {done.exit_code}")
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


def parsed_json(text: str) -> Any:
    """Parse a JSON document of untrusted code; None if it is invalid, too large or too deep."""
    if len(text) > MAX_JSON or sum(map(text.count, "[{,")) > MAX_NODES:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    level = [document]
    for _ in range(MAX_DEPTH):
        lists = [value.values() if isinstance(value, dict) else value for value in level]
        level = [inner for each in lists if not isinstance(each, str | float | int | None) for inner in each]
        if not level:
            return document
    return None
