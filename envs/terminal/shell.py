"""Commands in a machine as an agent sees them: one stream of output, and a shell that keeps its variables."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollenv.sandbox import Limits, Machine, NotFound

#: The setting of AgentBench's containers; a command has its own limit of time.
LIMITS = Limits(seconds=60.0, memory_mb=1024, processes=256, disk_mb=512, files=100_000, open_files=1 << 20)
#: Reads what to restore and the script, each up to a zero byte, and writes on standard error what to restore later.
_KEEPING = r"""
exec 3>&2 2>&1
IFS= read -r -d '' __state; IFS= read -r -d '' __script
exec < /dev/null
trap '__code=$?; unset __state __script; { declare -p; declare -f; printf "cd -- %q\n" "$PWD"; } >&3 2> /dev/null
exit $__code' EXIT
eval "$__state" > /dev/null 2>&1
eval "$__script"
"""
#: Runs a program in a folder that may be gone.
_ONCE = 'cd -- "$1" 2>&1 && shift && exec "$@" 2>&1'
#: Characters of variables and functions that are kept.
_MOST_KEPT = 500_000


@dataclass(frozen=True)
class Ran:
    """The outcome of a command."""

    text: str
    """Standard output and standard error, in the order they came."""
    exit_code: int
    cut: str = ""
    """The reason for stopping it; empty if it ended by itself."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if its exit code was 0."""
        return self.exit_code == 0


@dataclass
class Shell:
    """A Bash that goes on between scripts: folder, variables and functions stay, as do programs in the background.

    Each script runs in a process of its own, so that none can block or end the shell.

    Attributes:
        machine: where it runs.
        cwd: the first folder.
        timeout: seconds for a script; it is then stopped, and its variables are as before.
        user: user that runs it; by default the image's.
    """

    machine: Machine
    cwd: str
    timeout: float
    user: str | None = None
    kept: str = field(default="", repr=False)

    def run(self, script: str, *arguments: str, timeout: float | None = None) -> Ran:
        """Run a script to its end, or to the limit of time or output.

        Args:
            arguments: what it has as ``$1`` and so on.
            timeout: seconds, instead of the shell's own.
        """
        given = f"{self.kept or f'cd -- {shlex.quote(self.cwd)}'}\0{sendable(script)}\0"
        words = ["bash", "-c", _KEEPING, "--", *arguments]
        ran, kept = _run(self.machine, words, given, timeout or self.timeout, self.user)
        if not ran.cut and 0 < len(kept) < _MOST_KEPT:
            self.kept = kept
        return ran


def sendable(text: str) -> str:
    """Remove characters that no program can be given: zeros and halves of surrogate pairs."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def run_once(machine: Machine, words: Sequence[str], *, cwd: str, timeout: float) -> Ran:
    """Run a program by itself.

    Args:
        words: the program and its arguments.
        timeout: seconds that the program may take.
    """
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
    except NotFound:  # an agent that removes the shell is left without one
        return Ran("bash: No such file or directory", 127), ""
    cut = reasons.get(done.error.name, "") if done.error else ""
    return Ran(done.stdout, done.exit_code, cut, done.seconds), done.stderr


def settle(machine: Machine, seconds: float = 1.0) -> None:
    """Wait until what runs in the background has ended, or for so long."""
    for _ in range(round(seconds / 0.1)):
        if not is_busy(machine):
            return
        time.sleep(0.1)


def is_busy(machine: Machine) -> bool:
    """Return whether other processes run; a shell's own commands look, as programs may be replaced."""
    return sum(entry.name.isdecimal() for entry in machine.files.list("/proc")) > 2
