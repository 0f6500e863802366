"""The working folder of a task, for checks: commands, and safe access to files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from rollenv.sandbox import Machine
from rollenv.sandbox.errors import SandboxError, SandboxFileError
from rollenv.sandbox.types import CommandResult, Entry

_Found = TypeVar("_Found")

#: Maximum size of a file for checks, in bytes; a larger one is not read.
MOST_BYTES = 8 << 20
#: The environment of a check's commands, without the agent's variables.
_CLEAN = (
    "/usr/bin/env -i PATH=/usr/bin:/bin LC_ALL=C.UTF-8 HOME=/nonexistent PYTHONPYCACHEPREFIX=/dev/null/none "
    "/bin/bash --noprofile --norc -c"
)


class Workspace(Protocol):
    """The working folder of a machine, read from outside. Paths are relative to it.

    Whatever the folder contains, nothing here raises or blocks, unless the machine has died.
    """

    def run(self, command: str, *, timeout: float = 10.0) -> CommandResult:
        """Run a bash command in the working folder with a clean environment, and kill all its processes."""

    def look(self, path: str) -> Entry | None:
        """Return the status of a file, folder or link itself; None if nothing exists there."""

    def listing(self, path: str) -> list[Entry]:
        """Return the entries of a folder; empty if it is not a folder."""

    def read(self, path: str, most: int = MOST_BYTES) -> bytes | None:
        """Return the contents of a file; None if it is a link, unreadable or larger than ``most`` bytes."""


def _result_or_none(look: Callable[[], _Found]) -> _Found | None:
    """Return the result, or None if the agent's files make it fail."""
    with contextlib.suppress(SandboxFileError, UnicodeError, ValueError):
        return look()
    return None


class MachineWorkspace:
    """The folder ``/app`` of a :class:`~rollenv.sandbox.Machine`, where the agent's commands start too."""

    def __init__(self, machine: Machine, home: str = "/app"):
        self._machine, self._home = machine, home

    def prepare(self, files: Mapping[str, str | bytes], setup: str) -> None:
        """Write files, and then run the setup."""
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
        done = _result_or_none(lambda: self._machine.run(words, cwd=self._home, timeout=timeout))
        return done or CommandResult("", "the folder or bash is gone", 127, None, 0.0)

    def look(self, path: str) -> Entry | None:
        return _result_or_none(lambda: self._machine.files.info(self._path(path)))

    def listing(self, path: str) -> list[Entry]:
        return _result_or_none(lambda: self._machine.files.list(self._path(path))) or []

    def read(self, path: str, most: int = MOST_BYTES) -> bytes | None:
        entry = self.look(path)
        if entry is None or entry.type != "file" or entry.size > most:
            return None
        return _result_or_none(lambda: self._machine.files.read_bytes(self._path(path)))
