"""The record of a gateway: persistent events of its sessions as lines of JSON."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollenv.agents.gateway.messages import GatewayError
from rollenv.core.errors import UsageError, writes

#: The possible beginnings of lines.
_BEGINNINGS = (b'{"event":"', b'{"session":"')


class CallRecord:
    """Appends events to a file."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._lock = threading.Lock()
        if self.path.exists() and not self.path.is_file():
            raise UsageError(f"the gateway cannot write its record to {path}, which is no file; name another one")
        with writes(path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            opened = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            self._file = open(opened, "a+b", buffering=0)  # noqa: SIM115  # closed by close()
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another gateway writes its record to {path}; name another one, or stop it") from None

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events so far, and remove an incomplete last line."""
        good = 0
        with open(self.path, "rb") as lines:
            for line in lines:
                if not any(line.startswith(start) or start.startswith(line) for start in _BEGINNINGS):
                    raise ValueError
                if not line.endswith(b"\n"):
                    break
                yield json.loads(line)
                good += len(line)
        self._file.truncate(good)
        self._file.seek(0, os.SEEK_END)

    def append(self, event: Mapping[str, Any]) -> None:
        """Append an event, which then survives the end of this process."""
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            before = os.fstat(self._file.fileno()).st_size
            try:
                if self._file.write(line) != len(line):  # the disk is full
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._file.truncate(before)
                raise GatewayError("overloaded", f"cannot write to {self.path}: {error.strerror}") from error

    async def sync(self) -> None:
        """Flush all events to disk."""
        await asyncio.to_thread(getattr(os, "fdatasync", os.fsync), self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
