"""The record of a gateway: events of its sessions as lines of JSON, which survive the process."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b")  # noqa: SIM115  # closed by close()
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
        """Append an event, which survives this process from now on."""
        self._file.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")
        self._file.flush()

    async def sync(self) -> None:
        """Wait until all that was appended survives the machine too."""
        await asyncio.to_thread(os.fsync, self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
