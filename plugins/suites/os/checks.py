"""AgentBench's grading of a task in an operating system, isolated from the agent.

Checks never run programs that the agent may have changed. An answer is compared with the output of the solution on a
fresh machine. A changed system is checked on a fresh machine with the agent's files, but the system's own programs,
libraries and start-up files. One gap remains: a program that the agent had to write has the permissions of the check
that runs it.
"""

from __future__ import annotations

import contextlib
import re
import tarfile
from collections.abc import Callable, Iterator
from typing import IO

from rollenv.envs.terminal.guard import FileGuard
from rollenv.envs.terminal.shell import LIMITS, Shell
from rollenv.plugins.suites.os.items import Item, Script
from rollenv.sandbox import Machine
from rollenv.sandbox.layers import temporary

#: Start-up files of Bash. Tasks require changes of them, and checks that need them read them explicitly.
_STARTUP = re.compile(r"/(root|home/[^/]+)/\.(bashrc|bash_\w+|profile)$")


class SystemGuard(FileGuard):
    """A guard for tasks about the system: start-up files of Bash and permissions of programs are copied too."""

    def _keeps(self, path: str, member: tarfile.TarInfo, contents: IO[bytes] | None) -> bool:
        if _STARTUP.match(path) or (contents is not None and self._is_as_before(path, member, contents)):
            return True
        if contents is not None:
            contents.seek(0)
        return super()._keeps(path, member, contents)

    def _is_as_before(self, path: str, member: tarfile.TarInfo, contents: IO[bytes]) -> bool:
        """Return whether nothing but the permissions of a file has changed."""
        before = self.image.find(path)
        if before is None or before.is_symlink() or not before.is_file() or before.stat().st_size != member.size:
            return False
        return before.read_bytes() == contents.read()


HOME = "/root"
#: Time limit of a check, in seconds; one walks through all libraries in Bash.
_CHECKING = 120.0
#: Maximum length of an argument, slightly below Linux's limit.
_MOST_ARGUMENT = 128 * 1024 - 1
#: Variables that keep Python from importing from the current folder or the home folder.
_SAFE = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def is_right(item: Item, answer: str | None, machine: Machine, fresh: Callable[[], Machine]) -> bool:
    """Return whether a task is solved.

    Args:
        answer: None if the agent finished without an answer.
        fresh: starts a fresh machine, prepared for the task.
    """
    if item.answer is not None:
        if answer is None:
            return False
        if item.strip:
            answer = answer.strip()
        if item.regex:
            return bool(re.search(item.answer, answer))
        return answer == item.answer
    with fresh() if None in item.check else _copy_of(machine) as sandbox:
        # Each script gets the answer and the outputs of the scripts before it.
        arguments = [str(answer).encode("utf-8", "replace").decode()]
        for each in item.check:
            script = item.example if each is None else each
            assert script is not None  # checked by the reader
            if any("\0" in text or len(text.encode()) > _MOST_ARGUMENT for text in arguments):
                return False
            printed = _run(script, arguments, sandbox)
            if printed is None:
                return False
            arguments.append(printed)
        return True


@contextlib.contextmanager
def _copy_of(machine: Machine) -> Iterator[Machine]:
    """Start a machine with the agent's files, except those that would affect programs."""
    with temporary() as folder:
        machine.end_processes()
        image = machine.commit(folder / "layer", keep=SystemGuard(machine.image))
        with Machine.create(image, limits=LIMITS, env=_SAFE) as sandbox:
            yield sandbox


def _run(script: Script, arguments: list[str], machine: Machine) -> str | None:
    """Return the output of a script; None if it fails. Bash scripts run like the agent's, as some count processes."""
    if script.language == "bash":
        ran = Shell(machine, HOME, _CHECKING).run(f"exec 2> /dev/null\n{script.code}", *arguments)
        return ran.text if ran.ok else None
    done = machine.run(script.words(*arguments), cwd=HOME, timeout=_CHECKING)
    return done.stdout if done.exit_code == 0 else None
