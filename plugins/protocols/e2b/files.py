"""Folders (``filesystem.Filesystem``), contents of files, and the health of a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import posixpath
import secrets
import zlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

from pydantic import BaseModel, Field
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rollenv.core.errors import UsageError
from rollenv.plugins.protocols.e2b.connect import Feed, Message, followed, ping_of, server_stream, timeout_of, unary
from rollenv.plugins.protocols.e2b.service import FILES, HOME, E2BService, Path
from rollenv.remote.protocol import TooFast
from rollenv.sandbox import Sandbox
from rollenv.sandbox.errors import FileRefused, FileThere, NotADirectory, NotFound
from rollenv.sandbox.filesystem import FileEvent, OnEvent, WatchHandle
from rollenv.sandbox.types import Entry
from rollenv.serve.responses import Json, Streamed, validated
from rollenv.serve.sandboxes import PerSandbox, SandboxSession

#: Maximum entries of a listing, and maximum watched folders of one sandbox.
_ENTRIES, _WATCHES = 10_000, 16
#: Bytes of a piece of a file, maximum files in one request, and maximum concurrent uploads to one sandbox, since the
#: server buffers whole files.
_PIECE, _FILES, _UPLOADS = 1 << 20, 1000, 2
_TYPES = {"file": "FILE_TYPE_FILE", "dir": "FILE_TYPE_DIRECTORY", "link": "FILE_TYPE_SYMLINK"}
_EVENTS = {kind: f"EVENT_TYPE_{kind.upper()}" for kind in ("create", "write", "remove", "rename", "chmod")}
_USERS = {0: "root", 1000: "user", 65534: "nobody"}
#: Maximum links that are followed to a file, as on Linux.
_LINKS = 40


class _At(BaseModel):
    path: Path = HOME


class _Move(BaseModel):
    source: Path = HOME
    destination: Path = HOME


class _List(_At):
    depth: int = Field(1, ge=0, lt=2**32)


class _Watch(_At):
    recursive: bool = False
    includeEntry: bool = False


class _Watcher(BaseModel):
    watcherId: str


def routes(service: E2BService) -> list[BaseRoute]:
    """Routes of folders, contents and health."""
    files, contents, name = _Filesystem(service), _Contents(service), "filesystem.Filesystem"
    service.server.uploads.update(FILES)
    return [
        unary(service, f"{name}/Stat", _At, files.stat),
        unary(service, f"{name}/MakeDir", _At, files.make_dir),
        unary(service, f"{name}/Move", _Move, files.move),
        unary(service, f"{name}/ListDir", _List, files.list_dir),
        unary(service, f"{name}/Remove", _At, files.remove),
        unary(service, f"{name}/CreateWatcher", _Watch, files.create_watcher),
        unary(service, f"{name}/GetWatcherEvents", _Watcher, files.get_watcher_events),
        unary(service, f"{name}/RemoveWatcher", _Watcher, files.remove_watcher),
        server_stream(service, f"{name}/WatchDir", _Watch, files.watch_dir),
        *(service.route("GET", path, contents.read, inside=True) for path in FILES),
        *(service.route("POST", path, contents.write, inside=True) for path in FILES),
        service.route("GET", "/health", contents.health, inside=True),
    ]


class _Filesystem:
    def __init__(self, service: E2BService):
        self.service = service
        self._watches: PerSandbox[dict[str, WatchHandle]] = PerSandbox(dict)

    async def stat(self, session: SandboxSession, params: _At) -> Message:
        return {"entry": await self.service.run(session, lambda sandbox: _entry_at(sandbox, params.path))}

    async def make_dir(self, session: SandboxSession, params: _At) -> Message:
        def made(sandbox: Sandbox) -> Message:
            if sandbox.files.exists(params.path):
                raise FileThere(f"there is {params.path!r} already")
            sandbox.files.make_dir(params.path)
            return _entry_at(sandbox, params.path)

        return {"entry": await self.service.run(session, made)}

    async def move(self, session: SandboxSession, params: _Move) -> Message:
        def moved(sandbox: Sandbox) -> Message:
            sandbox.files.info(params.source)
            sandbox.files.make_dir(posixpath.dirname(params.destination))
            sandbox.files.rename(params.source, params.destination)
            return _entry_at(sandbox, params.destination)

        return {"entry": await self.service.run(session, moved)}

    async def list_dir(self, session: SandboxSession, params: _List) -> Message:
        entries: list[Entry] = []

        def listed(sandbox: Sandbox) -> list[Message]:
            _walk(sandbox, params.path, params.depth, entries)
            return [_entry(sandbox, entry) for entry in entries]

        return {"entries": await self.service.run(session, listed)}

    async def remove(self, session: SandboxSession, params: _At) -> Message:
        with contextlib.suppress(NotFound):  # it is already gone
            await self.service.run(session, lambda sandbox: sandbox.files.remove(params.path))
        return {}

    async def create_watcher(self, session: SandboxSession, params: _Watch) -> Message:
        return {"watcherId": await self._watch(session, params, None)}

    async def get_watcher_events(self, session: SandboxSession, params: _Watcher) -> Message:
        watch = self._watches(session).get(params.watcherId)
        if watch is None:
            raise NotFound("there is no such watcher")
        return {"events": [_event(event) for event in watch.events() if event.type in _EVENTS]}

    async def remove_watcher(self, session: SandboxSession, params: _Watcher) -> Message:
        watch = self._watches(session).pop(params.watcherId, None)
        if watch is None:
            raise NotFound("there is no such watcher")
        await asyncio.to_thread(watch.stop)
        return {}

    async def watch_dir(
        self, session: SandboxSession, params: _Watch, request: Request
    ) -> AsyncGenerator[Message, None]:
        """Stream events until the client disconnects."""
        feed = Feed(session.sandbox.sync)
        name = await self._watch(session, params, feed.put)
        try:
            yield {"start": {}}
            async for event in followed(feed, ping_of(request), timeout_of(request)):
                if event is None:
                    yield {"keepalive": {}}
                elif event.type in _EVENTS:
                    yield {"filesystem": _event(event)}
        finally:
            feed.close()
            watch = self._watches(session).pop(name, None)
            if watch is not None:
                self.service.spawn(asyncio.to_thread(watch.stop))

    async def _watch(self, session: SandboxSession, params: _Watch, on_event: OnEvent | None) -> str:
        """Watch a folder and return the name of the watch."""
        if params.includeEntry:
            raise UsageError("events have only the name of an entry; leave out includeEntry")
        watches, name = self._watches(session), secrets.token_urlsafe(12)

        def watch(sandbox: Sandbox) -> None:
            for other in [other for other, watch in list(watches.items()) if not watch.running]:
                watches.pop(other, None)
            if len(watches) >= _WATCHES:
                raise TooFast(f"{_WATCHES} folders of this sandbox are watched already")
            watches[name] = sandbox.files.watch(params.path, recursive=params.recursive, on_event=on_event)

        await self.service.run(session, watch)
        return name


def _walk(sandbox: Sandbox, path: str, depth: int, entries: list[Entry]) -> None:
    """Append entries by name, depth first."""
    for entry in sandbox.files.list(path):
        entry = replace(entry, path=posixpath.join(path, entry.name))
        entries.append(entry)
        if len(entries) > _ENTRIES:
            raise UsageError(f"there are more than {_ENTRIES} entries; request less depth")
        if depth > 1 and entry.type == "dir":
            with contextlib.suppress(NotFound, NotADirectory, FileRefused):  # removed meanwhile, or not readable
                _walk(sandbox, entry.path, depth - 1, entries)


def _entry_at(sandbox: Sandbox, path: str) -> Message:
    return _entry(sandbox, sandbox.files.info(path))


def _entry(sandbox: Sandbox, entry: Entry) -> Message:
    """Build the message about an entry. A link has the type and mode of what it leads to, unless it leads nowhere."""
    message: Message = {
        "name": _clean(posixpath.basename(entry.path) or "/"),
        "path": _clean(entry.path),
        "type": _TYPES[entry.type],
        "size": str(entry.size),
        "mode": entry.mode,
        "permissions": entry.permissions,
        "owner": _USERS.get(entry.owner, str(entry.owner)),
        "group": _USERS.get(entry.group, str(entry.group)),
        "modifiedTime": _time(entry.modified),
    }
    if entry.target is None:
        return message
    found, links = entry, 0
    with contextlib.suppress(NotFound, NotADirectory, FileRefused):
        while found.target is not None and links < _LINKS:
            to = posixpath.normpath(posixpath.join(posixpath.dirname(found.path), found.target))
            found, links = sandbox.files.info(to), links + 1
    if found.target is not None:
        found = entry
    return message | {"type": _TYPES[found.type], "mode": found.mode, "symlinkTarget": _clean(found.path)}


def _event(event: FileEvent) -> Message:
    return {"name": _clean(event.name), "type": _EVENTS[event.type]}


def _clean(text: str) -> str:
    """Replace bytes of a name that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _time(seconds: float) -> str:
    """Format a time, which code may have set to any value."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return "1970-01-01T00:00:00Z"


class _Contents:
    def __init__(self, service: E2BService):
        self.service = service
        self._uploads = PerSandbox(lambda: asyncio.Semaphore(_UPLOADS))

    async def health(self, request: Request) -> Response:
        self.service.session(request)
        return Response(status_code=204)

    async def read(self, request: Request) -> Response:
        """Stream a file; if it cannot be read, return an error."""
        session = self.service.session(request)
        pieces = self._pieces(session, _path(request))
        answer = Streamed(pieces, "application/octet-stream", self.service.request(session))
        await answer.begin()
        return answer

    async def write(self, request: Request) -> Response:
        """Write one file from the body, or several from a form."""
        session = self.service.session(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("multipart/form-data", "application/octet-stream"):
            raise UsageError("files come as multipart/form-data or as application/octet-stream")
        with self.service.request(session):
            async with self._uploads(session):
                written = await (self._form(session, request) if kind.startswith("m") else self._file(session, request))
        return Json(written)

    async def _file(self, session: SandboxSession, request: Request) -> list[dict[str, Any]]:
        path = _path(request)
        with SpooledTemporaryFile(_PIECE) as file:
            async for piece in request.stream():
                await asyncio.to_thread(file.write, piece)
            return [await self._put(session, path, file, request)]

    async def _form(self, session: SandboxSession, request: Request) -> list[dict[str, Any]]:
        path, kind = request.query_params.get("path"), request.headers["content-type"]
        # Parts without a filename arrive as text: as Latin-1, they are their bytes.
        headers = Headers({"content-type": f"{kind}; charset=latin-1"})
        try:
            form = await MultiPartParser(headers, request.stream(), max_files=_FILES, max_fields=_FILES).parse()
        except MultiPartException as error:
            raise UsageError(error.message) from error
        try:
            files: list[tuple[str, IO[bytes]]] = []
            for part in form.getlist("file"):
                if isinstance(part, UploadFile):
                    name = (part.filename or "").encode("latin-1").decode("utf-8", "replace")
                    files.append((validated(Path, path or name), part.file))
                elif path:
                    files.append((validated(Path, path), io.BytesIO(part.encode("latin-1"))))
            if not files or (path and len(files) > 1):
                raise UsageError(
                    "the form needs files named 'file', and a path, for one of them, if it has no filename"
                )
            return [await self._put(session, to, file, request) for to, file in files]
        finally:
            await form.close()

    async def _put(self, session: SandboxSession, path: str, file: IO[bytes], request: Request) -> dict[str, Any]:
        pieces = _pieces_of(file, request.headers.get("content-encoding", ""))
        async with session.use() as sandbox:
            await sandbox.files.write_stream(path, pieces)
        return {"name": posixpath.basename(path), "type": "file", "path": path}

    async def _pieces(self, session: SandboxSession, path: str) -> AsyncGenerator[bytes, None]:
        async with session.use() as sandbox, contextlib.aclosing(sandbox.files.read_stream(path)) as pieces:
            async for piece in pieces:
                yield piece


def _path(request: Request) -> str:
    if not request.query_params.get("path"):
        raise UsageError("the request needs a path")
    path: str = validated(Path, request.query_params["path"])
    return path


def _pieces_of(file: IO[bytes], encoding: str) -> Iterator[bytes]:
    """Read and decompress a file's contents; the sandbox limits their size."""
    file.seek(0)
    if encoding in ("", "identity"):
        source = file
    elif encoding == "gzip":
        source = cast("IO[bytes]", gzip.GzipFile(fileobj=file, mode="rb"))
    else:
        raise UsageError(f"contents have the encoding identity or gzip, not {encoding!r:.40}")
    try:
        while piece := source.read(_PIECE):
            yield piece
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"the contents cannot be unpacked: {error}") from error
