"""The files of a sandbox."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any

from rollenv.sandbox.errors import NotFound, operation_error
from rollenv.sandbox.types import Entry
from rollenv.sandbox.worker import Json

if TYPE_CHECKING:
    from rollenv.sandbox.sandbox import Sandbox

#: Seconds that an operation on files gets: inside, and until the sandbox is given up.
_SECONDS, _GRACE = 120.0, 30.0


class Files:
    """The files of a sandbox. Relative paths start in the scratch folder; code may write there alone.

    Every operation has code's own rights: it sees what code sees, and is refused what code is refused.
    """

    def __init__(self, sandbox: Sandbox):
        self._sandbox = sandbox

    def _perform(self, what: str, path: str, data: bytes = b"", **fields: Any) -> bytes:
        worker = self._sandbox._worker
        output = bytearray()
        terms = worker.run_fields(_SECONDS) | {"output_bytes": 1 << 40, "processes": None, "file_bytes": None} | fields
        done = worker.request(
            "file",
            data=data,
            wait=_SECONDS + _GRACE,
            on_bytes=lambda name, piece: output.extend(piece) if name == "stdout" else None,
            what=what,
            path=path,
            **terms,
        )
        if done["signal"] or done["exit_code"]:  # code in the sandbox may signal it, and memory may run out
            raise operation_error(errno.EINTR, f"{what} was ended before it was done: {path}")
        return bytes(output)

    def read(self, path: str) -> str:
        """A file's text (UTF-8)."""
        return self.read_bytes(path).decode()

    def read_bytes(self, path: str) -> bytes:
        """A file's contents; at most as much as the scratch folder holds.

        Raises:
            NotFound, FileIsDirectory, FileRefused, SandboxFileError: if it cannot be read; pipes, devices and the
                files of /proc are not read.
        """
        return self._perform("read", path, max_bytes=self._sandbox._worker.limits.disk_mb << 20)

    def write(self, path: str, data: str | bytes) -> None:
        """Write a file, and the folders above it."""
        self._perform("write", path, data.encode() if isinstance(data, str) else bytes(data))

    def list(self, path: str = ".") -> list[Entry]:
        """What is in a folder, by name."""
        base = path.rstrip("/")
        lines: list[Json] = [json.loads(line) for line in self._perform("list", path).splitlines()]
        return [Entry(path=f"{base}/{line['name']}", **line) for line in lines]

    def exists(self, path: str) -> bool:
        """Whether there is something."""
        try:
            self._perform("exists", path)
        except (NotFound, NotADirectoryError):
            return False
        return True

    def make_dir(self, path: str) -> None:
        """Make a folder, and those above it."""
        self._perform("make_dir", path)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it."""
        self._perform("remove", path)

    def rename(self, path: str, to: str) -> None:
        """Move a file or folder."""
        self._perform("rename", path, to=to)
