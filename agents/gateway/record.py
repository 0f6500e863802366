"""The record of a gateway: events of its sessions as lines of JSON, which survive the process."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollenv.agents.gateway.messages import GatewayError
from rollenv.core import UsageError


class Record:
    """Appends events to a file.

    Args:
        path: a file; what is in it stays.

    Raises:
        UsageError: it cannot be written.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115  # closed by close()
            os.chmod(self.path, 0o600)
        except OSError as error:
            raise UsageError(f"the gateway cannot write its record to {path}: {error.strerror}") from error

    def events(self) -> Iterator[dict[str, Any]]:
        """The events so far. A last line that was cut off by the end of the process is removed.

        Raises:
            UsageError: the file holds something else.
        """
        self._file.seek(0)
        good = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            try:
                event = json.loads(line)
                event["event"]
            except (ValueError, TypeError, KeyError) as error:
                raise UsageError(f"{self.path} is not the record of a gateway: name another file") from error
            good += len(line)
            yield event
        self._file.truncate(good)
        self._file.seek(0, os.SEEK_END)

    def append(self, event: Mapping[str, Any]) -> None:
        """Append an event, which survives this process from now on.

        Raises:
            GatewayError: it cannot be written. The file ends as before.
        """
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
        """Wait until all that was appended survives the machine too."""
        await asyncio.to_thread(getattr(os, "fdatasync", os.fsync), self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
