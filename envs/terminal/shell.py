"""Commands in a machine with combined output, and a shell that keeps its variables."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollenv.sandbox import Limits, Machine, NotFound

#: Limits of AgentBench's containers; a command has its own time limit.
LIMITS = Limits(seconds=60.0, memory_mb=1024, processes=256, disk_mb=512, files=100_000, open_files=1 << 20)
#: Reads the saved variables and the script, each up to a zero byte, and writes the variables to save to standard error.
_KEEPING = r"""
exec 3>&2 2>&1
IFS= read -r -d '' __state; IFS= read -r -d '' __script
exec < /dev/null
trap '__code=$?; unset __state __script; { declare -p; declare -f; printf "cd -- %q\n" "$PWD"; } >&3 2> /dev/null
exit $__code' EXIT
eval "$__state" > /dev/null 2>&1
eval "$__script"
"""
#: Runs a program in a folder that may not exist.
_ONCE = 'cd -- "$1" 2>&1 && shift && exec "$@" 2>&1'
#: Maximum length of saved variables and functions.
_MOST_KEPT = 500_000


@dataclass(frozen=True)
class Ran:
    """The outcome of a command."""

    text: str
    """Standard output and standard error, interleaved."""
    exit_code: int
    cut: str = ""
    """The reason why it was stopped; empty if it exited."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if its exit code was 0."""
        return self.exit_code == 0


@dataclass
class Shell:
    """A Bash session: folder, variables, functions and background processes persist between scripts.

    Each script runs in a new process, so that it can neither block nor end the session.

    Attributes:
        cwd: the initial folder.
        timeout: time limit of a script, in seconds; changes of variables by a script that exceeds it are lost.
        user: user that runs it; by default the image's.
    """

    machine: Machine
    cwd: str
    timeout: float
    user: str | None = None
    kept: str = field(default="", repr=False)

    def run(self, script: str, *arguments: str, timeout: float | None = None) -> Ran:
        """Run a script to its end, or to the limit of time or output. ``arguments``: values of ``$1`` and so on."""
        given = f"{self.kept or f'cd -- {shlex.quote(self.cwd)}'}\0{sendable(script)}\0"
        words = ["bash", "-c", _KEEPING, "--", *arguments]
        ran, kept = _run(self.machine, words, given, timeout or self.timeout, self.user)
        if not ran.cut and 0 < len(kept) < _MOST_KEPT:
            self.kept = kept
        return ran


def sendable(text: str) -> str:
    """Remove characters that cannot be passed to programs: zeros and lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def run_once(machine: Machine, words: Sequence[str], *, cwd: str, timeout: float) -> Ran:
    """Run a program outside a session, with a time limit in seconds."""
    return _run(machine, ["bash", "-c", _ONCE, "--", cwd, *words], "", timeout)[0]


def _run(machine: Machine, words: list[str], given: str, timeout: float, user: str | None = None) -> tuple[Ran, str]:
    reasons = {
        "Timeout": f"it ran for longer than {timeout:g} seconds",
        "OutputLimit": "it wrote too much",
        "MemoryLimit": "it used too much memory",
        "ProcessLimit": "it started too many processes",
        "Killed": "it was killed",
    }
    try:
        done = machine.run(words, cwd="/", stdin=given, timeout=timeout, user=user)
    except NotFound:  # the agent has removed the shell
        return Ran("bash: No such file or directory", 127), ""
    cut = reasons.get(done.error.name, "") if done.error else ""
    return Ran(done.stdout, done.exit_code, cut, done.seconds), done.stderr


def settle(machine: Machine, seconds: float = 1.0) -> None:
    """Wait for the end of background processes, at most for so many seconds."""
    for _ in range(round(seconds / 0.1)):
        if not is_busy(machine):
            return
        time.sleep(0.1)


def is_busy(machine: Machine) -> bool:
    """Return whether other processes are running; uses only shell built-ins, as programs may have been replaced."""
    return sum(entry.name.isdecimal() for entry in machine.files.list("/proc")) > 2
