"""What happens in a folder of a sandbox, as it happens."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rollenv.sandbox.errors import SandboxError
from rollenv.sandbox.streams import Stream

#: Events that wait to be fetched, at most; older ones are forgotten.
MAX_EVENTS = 10_000
_MAX_LINE = 1 << 16
_KINDS = ("create", "write", "remove", "rename", "chmod", "overflow")


@dataclass(frozen=True, slots=True)
class FileEvent:
    """Something that happened to a file or folder."""

    type: str
    """``create``, ``write``, ``remove``, ``rename`` (away; the new name is created), ``chmod``, or ``overflow``: more
    happened than could be reported."""
    name: str
    """Relative to the folder that is watched."""


OnEvent = Callable[[FileEvent], None]


class WatchHandle:
    """Watches a folder until it is stopped, the folder goes, or the sandbox ends."""

    def __init__(self, stream: Stream, on_event: OnEvent | None):
        self._stream, self._on_event = stream, on_event
        self._events: deque[FileEvent] = deque(maxlen=MAX_EVENTS)
        self._begun = threading.Event()
        self._failure: SandboxError | None = None
        self._thread = threading.Thread(target=self._read, name="sandbox-watch", daemon=True)
        self._thread.start()
        self._begun.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def running(self) -> bool:
        """Whether it still watches."""
        return self._thread.is_alive()

    def events(self) -> list[FileEvent]:
        """What happened since the last call."""
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def stop(self) -> None:
        """End it; calling it again does nothing."""
        self._stream.close()

    def _read(self) -> None:
        rest = b""
        try:
            for name, data in self._stream.pieces():
                if name == "stdout":
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        self._take(line)
                    if len(rest) > _MAX_LINE:
                        break
        except SandboxError as error:
            self._failure = error
        finally:
            self._begun.set()
            self._stream.close()

    def _take(self, line: bytes) -> None:
        try:
            said = json.loads(line)
            kind, name = said["type"], said["name"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return  # code can write to what code's user runs
        if kind == "ready":
            self._begun.set()
        elif kind in _KINDS and isinstance(name, str):
            event = FileEvent(kind, name)
            self._events.append(event)
            if self._on_event:
                self._on_event(event)
