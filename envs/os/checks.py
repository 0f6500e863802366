"""AgentBench's grading of a task in an operating system, where the agent cannot reach.

What decides is never run by a program that the agent may have changed. An answer is compared with what the solution
prints in a new machine that the agent never was in. A changed system is looked at in a new machine with the agent's
files, but with the system's own programs, libraries and start-up files. One gap remains: a program of the agent
that a check has to run, because the task was to write it, has the check's rights while it runs.
"""

from __future__ import annotations

import contextlib
import re
import tarfile
from collections.abc import Callable, Iterator
from typing import IO

from rollenv.envs.os.items import Item, Script
from rollenv.envs.terminal.guard import Guard
from rollenv.envs.terminal.shell import LIMITS, Shell
from rollenv.sandbox import Machine
from rollenv.sandbox.layers import temporary

#: Files that Bash reads at its start; tasks ask for changes of it, and their checks read it where they need it.
_STARTUP = re.compile(r"/(root|home/[^/]+)/\.(bashrc|bash_\w+|profile)$")


class SystemGuard(Guard):
    """A guard for tasks about the system itself: start-up files of Bash and permissions of programs are kept."""

    def _keeps(self, path: str, member: tarfile.TarInfo, contents: IO[bytes] | None) -> bool:
        if _STARTUP.match(path) or (contents is not None and self._is_as_before(path, member, contents)):
            return True
        if contents is not None:
            contents.seek(0)
        return super()._keeps(path, member, contents)

    def _is_as_before(self, path: str, member: tarfile.TarInfo, contents: IO[bytes]) -> bool:
        """Return whether at most the permissions of a file have changed."""
        before = self.image.find(path)
        if before is None or before.is_symlink() or not before.is_file() or before.stat().st_size != member.size:
            return False
        return before.read_bytes() == contents.read()


HOME = "/root"
#: Seconds for a script that checks; one walks through all libraries in Bash.
_CHECKING = 120.0
#: The longest argument of a program, a little below Linux' own limit.
_MOST_ARGUMENT = 128 * 1024 - 1
#: Python finds nothing in the current folder or the home folder.
_SAFE = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def is_right(item: Item, answer: str | None, machine: Machine, fresh: Callable[[], Machine]) -> bool:
    """Return whether a task is solved.

    Args:
        answer: that was given; None if the agent only reported that it has finished.
        machine: that the agent worked in. Its processes end.
        fresh: starts a machine in which the agent never was, prepared for the task.

    Raises:
        SandboxError: a machine to grade in cannot be started.
    """
    if item.answer is not None:
        return answer is not None and _matches(item, answer)
    with fresh() if None in item.check else _copy_of(machine) as sandbox:
        # Each script gets the answer and what those before it printed.
        arguments = [str(answer).encode("utf-8", "replace").decode()]
        for each in item.check:
            script = item.example if each is None else each
            assert script is not None  # the reader looked
            if any("\0" in text or len(text.encode()) > _MOST_ARGUMENT for text in arguments):
                return False
            printed = _run(script, arguments, sandbox)
            if printed is None:
                return False
            arguments.append(printed)
        return True


def _matches(item: Item, answer: str) -> bool:
    given = answer.strip() if item.strip else answer
    assert item.answer is not None
    return bool(re.search(item.answer, given)) if item.regex else given == item.answer


@contextlib.contextmanager
def _copy_of(machine: Machine) -> Iterator[Machine]:
    """A machine with the agent's files, without its processes and without what would change how programs run."""
    with temporary() as folder:
        machine.end_processes()
        image = machine.commit(folder / "layer", keep=SystemGuard(machine.image))
        with Machine.create(image, limits=LIMITS, env=_SAFE) as sandbox:
            yield sandbox


def _run(script: Script, arguments: list[str], machine: Machine) -> str | None:
    """Return the output of a script; None if it fails. One for Bash runs as the agent's do: some count processes."""
    if script.language == "bash":
        ran = Shell(machine, HOME, _CHECKING).run(f"exec 2> /dev/null\n{script.code}", *arguments)
        return ran.text if ran.ok else None
    done = machine.run(script.words(*arguments), cwd=HOME, timeout=_CHECKING)
    return done.stdout if done.exit_code == 0 else None
