"""Types: limits, results, and the interface of every runner."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from rollenv.core import UsageError


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one run."""

    seconds: float = 10.0
    """Wall-clock time; a run with its own timeout has that instead. Background work between requests has as
    much processor time."""
    memory_mb: int = 1024
    """Memory of all of a sandbox's processes and files together, and address space of each process that runs Python
    code (other programs reserve far more than they use)."""
    output_bytes: int = 4 * 2**20
    """Standard output and standard error, each, at most 32 MiB. A run that writes more is stopped."""
    processes: int = 64
    """Processes and threads."""
    disk_mb: int = 64
    """The scratch folder (in memory), and the largest file in it."""
    files: int = 10_000
    """Files and folders in the scratch folder."""
    open_files: int = 256
    """Open file descriptors of each process."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise UsageError(f"the limit {name} must be above 0, got {getattr(self, name)!r}")
        if self.output_bytes > 32 << 20:
            raise UsageError(f"output_bytes must be at most {32 << 20}, got {self.output_bytes}; write to a file")


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run."""

    stdout: str
    stderr: str
    exit_code: int
    """Below zero for the signal that ended it."""
    timed_out: bool
    seconds: float
    """Wall-clock time."""
    truncated: bool
    """True if it wrote more than the limit; it was stopped there."""
    out_of_memory: bool = False
    """True if its processes together used more memory than the limit; they were stopped there."""


class Runner(Protocol):
    """Runs Python programs, each in a fresh interpreter. Threads may share one."""

    def run(self, code: str, *, stdin: str = "", timeout: float | None = None) -> RunResult:
        """Run a program to its end or its limits; nothing the program does is an exception here.

        Args:
            code: the program; it runs as ``__main__``.
            stdin: what it reads from standard input.
            timeout: seconds; by default what the runner's limits say.
        """
        ...

    def close(self) -> None:
        """Release every resource; calling it again does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """One rich result, in every representation that the value offers. Pictures and documents of bytes are base64."""

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
    """Of a table of pandas: column to values."""
    chart: Any = None
    """Of a figure of matplotlib: what was drawn, see :func:`rollenv.sandbox.inside.charts.of_figure`."""
    is_main_result: bool = False
    """True for the value of the last expression, and not something displayed."""
    extra: dict[str, str] = field(default_factory=dict)
    """Representations of other MIME types, as text."""

    def formats(self) -> list[str]:
        """The names of the representations that it has."""
        names = [f.name for f in fields(self) if f.name not in ("is_main_result", "extra")]
        return [name for name in names if getattr(self, name) not in (None, "")] + list(self.extra)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """A notebook shows it as the value itself would be shown."""
        return {MIME[name]: getattr(self, name) for name in self.formats() if name in MIME} | self.extra


#: The MIME types of representations.
MIME = {
    "text": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
    "latex": "text/latex",
    "json": "application/json",
    "javascript": "application/javascript",
}


@dataclass(frozen=True, slots=True)
class Logs:
    """The output, in the pieces it came in."""

    stdout: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ExecutionError:
    """The failure of code: an exception, or ``Timeout``, ``OutputLimit``, ``MemoryLimit``, ``ProcessLimit``,
    ``Killed``, ``Exit``, ``ReportViolation`` (it tampered with its report) or ``SandboxDied`` (it took the sandbox with
    it)."""

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
    """Of the process, if it ended: below zero for a signal. None for a context that keeps running."""
    seconds: float
    execution_count: int | None = None
    """The number of cells that the context's process has run, this one included; None for a standalone program."""

    @property
    def text(self) -> str | None:
        """The value of the last expression as text."""
        return next((r.text for r in self.results if r.is_main_result), None)


@dataclass(frozen=True, slots=True)
class Context:
    """A context, in which cells keep their state."""

    name: str
    language: str
    cwd: str | None
    """Its first working directory; None for the scratch folder."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command."""

    stdout: str
    stderr: str
    exit_code: int
    """As shells say it: 128 and the signal's number if a signal ended it."""
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
    """Bytes."""
    mode: int
    modified: float = 0.0
    """Seconds since 1970."""
    owner: int = 0
    """Number of its user, and of its group."""
    group: int = 0
    target: str | None = None
    """The target of a link."""

    @property
    def permissions(self) -> str:
        """The mode as ``ls`` shows it."""
        return stat.filemode({"dir": stat.S_IFDIR, "link": stat.S_IFLNK}.get(self.type, stat.S_IFREG) | self.mode)


@dataclass(frozen=True, slots=True)
class Process:
    """A running context or command."""

    pid: int
    """Its process id in the sandbox."""
    command: tuple[str, ...]
    """The first words of a command; empty for a context."""
    context: str | None
    """The name of a context."""
    seconds: float
    """The time since its start."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The current use of a sandbox. Memory and disk are in bytes."""

    cpu_count: int
    cpu_seconds: float
    """Processor time of what runs, and of what it waited for."""
    cpu_percent: float
    """Of one processor, since the last call (or the start)."""
    memory_used: int
    memory_total: int
    disk_used: int
    """In the scratch folder."""
    disk_total: int
    processes: int
    timestamp: float
    """Seconds since 1970."""
