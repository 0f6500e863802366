"""The files of a sandbox."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rollenv.sandbox.errors import NotFound, SandboxError, SandboxFileError
from rollenv.sandbox.inside import protocol
from rollenv.sandbox.types import Entry, to_bytes
from rollenv.sandbox.worker import PIECE, RequestStream, SandboxWorker

_Operation = TypeVar("_Operation", bound=protocol.FileOperation)
#: Timeout of a file operation inside, and additional seconds until the sandbox counts as failed.
_SECONDS, _GRACE = 120.0, 30.0
#: Maximum events that wait to be fetched; older ones are dropped.
MAX_EVENTS = 10_000
_MAX_LINE = 1 << 16
_KINDS = ("create", "write", "remove", "rename", "chmod", "overflow")
#: Maximum bytes of a listing, and of all events of a watch.
_MAX_LISTING, _MAX_EVENT_BYTES = 64 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A change of a file or folder."""

    type: str
    """``create``, ``write``, ``remove``, ``rename`` (of the old name; the new name is a ``create``), ``chmod``, or
    ``overflow`` if events were lost."""
    name: str
    """Path relative to the watched folder."""


OnEvent = Callable[[FileEvent], None]


class WatchHandle:
    """A watch on a folder, until it is stopped, the folder is removed, or the sandbox ends."""

    def __init__(self, stream: RequestStream, on_event: OnEvent | None):
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
        """True while the folder is watched."""
        return self._thread.is_alive()

    def events(self) -> list[FileEvent]:
        """Return the events since the last call."""
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def stop(self) -> None:
        """End the watch; further calls have no effect."""
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
            fields = json.loads(line)
            kind, name = fields["type"], fields["name"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return  # untrusted code may have written the line
        if kind == "ready":
            self._begun.set()
        elif kind in _KINDS and isinstance(name, str):
            event = FileEvent(kind, name)
            self._events.append(event)
            if self._on_event:
                self._on_event(event)


class Files:
    """The files of a sandbox. Relative paths start in the scratch folder, the only folder that code may write to.

    Operations have the same permissions as code.
    """

    def __init__(self, worker: SandboxWorker):
        self._worker = worker

    def _perform(self, request: protocol.FileOperation, data: bytes = b"", most: int = _MAX_LISTING) -> bytes:
        """Carry out an operation and return its output of at most ``most`` bytes."""
        output = bytearray()
        done = self._worker.run(
            self._limited(request, most),
            data,
            wait=_SECONDS + _GRACE,
            on_bytes=lambda name, piece: output.extend(piece if name == "stdout" else b""),
        )
        _require_done(done, request)
        return bytes(output)

    def _limited(self, request: _Operation, most: int, seconds: float = _SECONDS) -> _Operation:
        """Return the request with limits."""
        limits = self._worker.limits_of(seconds)
        limits |= {"output_bytes": most, "processes": None, "file_bytes": None}
        return replace(request, **limits)

    def read(self, path: str) -> str:
        """Read a file as UTF-8."""
        return self.read_bytes(path).decode()

    def read_bytes(self, path: str) -> bytes:
        """Read a file of at most the scratch folder's size.

        Raises:
            NotFound, FileIsDirectory, FileRefused, SandboxFileError: the file cannot be read, or is a pipe, a device
                or in /proc.
        """
        return self._perform(protocol.ReadFile(path=path, max_bytes=self._most), most=self._most)

    @property
    def _most(self) -> int:
        """Maximum bytes of a file."""
        return self._worker.limits.disk_mb << 20

    def read_stream(self, path: str) -> Generator[bytes, None, None]:
        """Read a file lazily, in pieces. See :meth:`read_bytes`."""
        request = self._limited(protocol.ReadFile(path=path, max_bytes=self._most), self._most, seconds=0)
        stream = RequestStream(self._worker, request)
        try:
            for name, piece in stream.pieces(_SECONDS):
                if name == "stdout":
                    yield piece
            _require_done(stream.done or protocol.Finished(), request)
        finally:
            stream.close()

    def write(self, path: str, data: str | bytes) -> None:
        """Write a file; missing parent folders are created.

        Args:
            data: content; text is encoded as UTF-8.
        """
        self._perform(protocol.WriteFile(path=path), to_bytes(data))

    def write_stream(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write a file from a stream, without holding all of it in memory."""
        request = self._limited(protocol.WriteFile(path=path, last=False), _MAX_LISTING, seconds=0)
        stream = RequestStream(self._worker, request)
        try:
            with contextlib.suppress(SandboxFileError):  # the operation's own error has the reason
                for piece in pieces:
                    for at in range(0, len(piece), PIECE):
                        stream.send(piece[at : at + PIECE])
                stream.send(b"", last=True)
            for _ in stream.pieces(_SECONDS):
                pass
            _require_done(stream.done or protocol.Finished(), request)
        finally:
            stream.close()

    def write_many(self, files: Mapping[str, str | bytes]) -> None:
        """Write several files, given as a mapping of paths to contents, in one operation."""
        whole = {path: to_bytes(data) for path, data in files.items()}
        parts = [(path, len(data)) for path, data in whole.items()]
        request = protocol.WriteFiles(path=", ".join(list(whole)[:3]), parts=parts)
        self._perform(request, b"".join(whole.values()))

    def list(self, path: str = ".") -> list[Entry]:
        """List a folder, by name."""
        base = path.rstrip("/")
        return [_entry(line, base) for line in self._perform(protocol.ListFolder(path=path)).splitlines()]

    def info(self, path: str) -> Entry:
        """Describe a file, folder or link; a link is not followed.

        Raises:
            NotFound: the path does not exist.
        """
        entry = _entry(self._perform(protocol.DescribePath(path=path)), "")
        return replace(entry, path=path)

    def watch(self, path: str = ".", *, recursive: bool = False, on_event: OnEvent | None = None) -> WatchHandle:
        """Watch a folder from now on.

        Args:
            recursive: include subfolders.
            on_event: called with each event in a thread; or fetch them with :meth:`WatchHandle.events`.

        Raises:
            NotFound, NotADirectory: the path is not a folder.
        """
        request = protocol.WatchFolder(path=path, recursive=recursive, quiet=True)
        return WatchHandle(RequestStream(self._worker, self._limited(request, _MAX_EVENT_BYTES, seconds=0)), on_event)

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        try:
            self._perform(protocol.CheckPath(path=path))
        except (NotFound, NotADirectoryError):
            return False
        return True

    def make_dir(self, path: str) -> None:
        """Make a folder and its parents."""
        self._perform(protocol.MakeFolder(path=path))

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it."""
        self._perform(protocol.RemovePath(path=path))

    def rename(self, path: str, to: str) -> None:
        """Move a file or folder."""
        self._perform(protocol.RenamePath(path=path, to=to))


def _require_done(done: protocol.Finished, request: protocol.FileOperation) -> None:
    """Raise an error if the operation was stopped before its end."""
    why = next((name for name in ("out_of_memory", "timed_out", "truncated") if getattr(done, name)), None)
    if why or done.signal or done.exit_code:
        why = why.replace("_", " ") if why else "it was ended"
        raise SandboxFileError(f"{type(request).__name__} of {request.path!r} was not finished: {why}")


def _entry(line: bytes, base: str) -> Entry:
    """Parse a line of a listing; untrusted code may have written it."""
    try:
        fields = json.loads(line)
        kinds: dict[str, Any] = {"name": str, "type": str, "modified": (int, float)}
        kinds |= dict.fromkeys(("size", "mode", "owner", "group"), int)
        if not all(isinstance(fields[name], kind) for name, kind in kinds.items()):
            raise TypeError
        target = fields.get("target")
        known = {name: fields[name] for name in kinds}
        return Entry(path=f"{base}/{fields['name']}", target=target if isinstance(target, str) else None, **known)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SandboxFileError("the sandbox sent a malformed file listing") from error
