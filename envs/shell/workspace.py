"""A task's working folder, as checks read it: commands, and a careful look at files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from rollenv.sandbox import Machine
from rollenv.sandbox.errors import SandboxError, SandboxFileError
from rollenv.sandbox.types import CommandResult, Entry

_Found = TypeVar("_Found")

#: Bytes of a file that a check reads; a larger one is not read at all.
MOST_BYTES = 8 << 20
#: The environment of a check's commands: nothing of the agent's.
_CLEAN = (
    "/usr/bin/env -i PATH=/usr/bin:/bin LC_ALL=C.UTF-8 HOME=/nonexistent PYTHONPYCACHEPREFIX=/dev/null/none "
    "/bin/bash --noprofile --norc -c"
)


class Workspace(Protocol):
    """The working folder of a machine, read from outside. Paths are relative to it.

    Nothing here raises or waits for what lies in the folder; a machine that has died is another matter.
    """

    def run(self, command: str, *, timeout: float = 10.0) -> CommandResult:
        """Run a bash command in the working folder with a clean environment, and end all that it started.

        Args:
            timeout: seconds that the command may take.
        """

    def look(self, path: str) -> Entry | None:
        """Return the facts about a file, folder or link itself; None if there is nothing."""

    def listing(self, path: str) -> list[Entry]:
        """Return the entries of a folder; nothing if it is not a folder."""

    def read(self, path: str, most: int = MOST_BYTES) -> bytes | None:
        """The contents of a regular file; None if it is anything else, cannot be read or is too large.

        Args:
            path: path of the file; its last component is not a link.
            most: the most bytes that the file may have.
        """


def _found(look: Callable[[], _Found]) -> _Found | None:
    """Return the entry, or None: the agent's folder may hold anything."""
    with contextlib.suppress(SandboxFileError, UnicodeError, ValueError):
        return look()
    return None


class MachineWorkspace:
    """The folder ``/app`` of a :class:`~rollenv.sandbox.Machine`, where the agent's commands start too."""

    def __init__(self, machine: Machine, home: str = "/app"):
        self._machine, self._home = machine, home

    def prepare(self, files: Mapping[str, str | bytes], setup: str) -> None:
        """Write files, and then run commands that have to succeed.

        Args:
            setup: for bash; what it starts in the background goes on.

        Raises:
            SandboxError: the setup failed, so there is no task.
        """
        self._machine.files.write_many({self._path(path): data for path, data in files.items()})
        if not setup:
            return
        done = self._machine.run(["/bin/bash", "-c", setup], cwd=self._home, timeout=60)
        if done.exit_code or done.error:
            raise SandboxError(
                f"the setup of a shell task ended with {done.exit_code}: {done.error} {done.stderr[-500:]}"
            )

    def _path(self, path: str) -> str:
        return f"{self._home}/{path}"

    def run(self, command: str, *, timeout: float = 10.0) -> CommandResult:
        words = [*_CLEAN.split(), command]
        done = _found(lambda: self._machine.run(words, cwd=self._home, timeout=timeout))
        return done or CommandResult("", "the folder or bash is gone", 127, None, 0.0)

    def look(self, path: str) -> Entry | None:
        return _found(lambda: self._machine.files.info(self._path(path)))

    def listing(self, path: str) -> list[Entry]:
        return _found(lambda: self._machine.files.list(self._path(path))) or []

    def read(self, path: str, most: int = MOST_BYTES) -> bytes | None:
        entry = self.look(path)
        if entry is None or entry.type != "file" or entry.size > most:
            return None
        return _found(lambda: self._machine.files.read_bytes(self._path(path)))
