"""What running code means: limits, the result, and the interface of every runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use."""

    seconds: float = 10.0
    """Wall-clock time; a run asked for with a timeout of its own has that instead."""
    memory_mb: int = 1024
    """Address space of each process."""
    output_bytes: int = 4 * 2**20
    """Standard output and standard error, each; also the largest file that may be written."""
    processes: int = 64
    """Processes and threads."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run left behind."""

    stdout: str
    stderr: str
    exit_code: int
    """Below zero for the signal that ended it."""
    timed_out: bool
    seconds: float
    """Wall-clock time."""
    truncated: bool
    """Whether it wrote more than the limit; it was stopped there."""


class Runner(Protocol):
    """Runs Python programs, each in a fresh interpreter. Threads may share one."""

    def run(self, code: str, *, stdin: str = "", timeout: float | None = None) -> RunResult:
        """Run a program to its end or its limits; what the program does is never an exception here.

        Args:
            code: the program; it runs as ``__main__``.
            stdin: what it reads from standard input.
            timeout: seconds; by default what the runner's limits say.
        """
        ...

    def close(self) -> None:
        """Let go of every resource; calling it again does nothing."""
        ...
