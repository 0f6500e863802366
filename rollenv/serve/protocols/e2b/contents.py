"""The contents of files, and whether a sandbox runs."""

from __future__ import annotations

import asyncio
import gzip
import posixpath
import zlib
from collections.abc import AsyncGenerator, Iterator
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from rollenv.core import UsageError
from rollenv.serve.protocols.e2b.base import PREFIX, E2BService, at_home
from rollenv.serve.protocols.e2b.streams import Streamed
from rollenv.serve.responses import Json
from rollenv.serve.sandboxes import SandboxSession

_PIECE = 1 << 20
#: Files in one request.
_FILES = 1000


def routes(service: E2BService) -> list[BaseRoute]:
    """Reading, writing, and a sign of life."""
    contents = _Contents(service)
    service.server.uploads.add(f"{PREFIX}/files")
    found = [("GET", "/files", contents.read), ("POST", "/files", contents.write), ("GET", "/health", contents.health)]
    return [service.route(method, path, handler, inside=True) for method, path, handler in found]


class _Contents:
    def __init__(self, service: E2BService):
        self.service = service

    async def health(self, request: Request) -> Response:
        self.service.box(request)
        return Response(status_code=204)

    async def read(self, request: Request) -> Response:
        """A file, in pieces; what cannot be read is said before the first."""
        box, path = self.service.box(request), _path(request)
        held = self.service.held(box)
        pieces = self._pieces(box, path)
        try:
            first = await anext(pieces, b"")
        except BaseException:
            held.close()
            raise
        return Streamed(_after(first, pieces), "application/octet-stream", held)

    async def write(self, request: Request) -> Response:
        """One file in the body, or several in a form."""
        box = self.service.box(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("multipart/form-data", "application/octet-stream"):
            raise UsageError("files come as multipart/form-data or as application/octet-stream")
        with self.service.request(box):
            async with self.service.kept(box).uploads:
                told = await (self._form(box, request) if kind.startswith("m") else self._file(box, request))
        return Json(told)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _file(self, box: SandboxSession, request: Request) -> list[dict[str, Any]]:
        path = _path(request)
        with SpooledTemporaryFile(_PIECE) as file:
            async for piece in request.stream():
                await asyncio.to_thread(file.write, piece)
            return [await self._put(box, path, file, request)]

    async def _form(self, box: SandboxSession, request: Request) -> list[dict[str, Any]]:
        async with request.form(max_files=_FILES, max_fields=_FILES) as form:
            files = [value for name, value in form.multi_items() if name == "file" and isinstance(value, UploadFile)]
            path = request.query_params.get("path")
            if not files or (path and len(files) > 1):
                raise UsageError("the form needs files named 'file', and only one of them if there is a path")
            paths = [at_home(path or file.filename) for file in files]
            return [await self._put(box, to, file.file, request) for to, file in zip(paths, files, strict=True)]

    async def _put(self, box: SandboxSession, path: str, file: IO[bytes], request: Request) -> dict[str, Any]:
        pieces = _pieces_of(file, request.headers.get("content-encoding", ""))
        async with box.use() as sandbox:
            await sandbox.files.write_stream(path, pieces)
        return {"name": posixpath.basename(path), "type": "file", "path": path}

    async def _pieces(self, box: SandboxSession, path: str) -> AsyncGenerator[bytes, None]:
        async with box.use() as sandbox:
            pieces = sandbox.files.read_stream(path)
            try:
                async for piece in pieces:
                    yield piece
            finally:
                await pieces.aclose()


def _path(request: Request) -> str:
    if not request.query_params.get("path"):
        raise UsageError("the request needs a path")
    return at_home(request.query_params["path"])


async def _after(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        yield first
        async for piece in pieces:
            yield piece
    finally:
        await pieces.aclose()


def _pieces_of(file: IO[bytes], encoding: str) -> Iterator[bytes]:
    """A file's contents, unpacked if need be; the sandbox takes no more than it has room for."""
    file.seek(0)
    if encoding in ("", "identity"):
        source = file
    elif encoding == "gzip":
        source = cast("IO[bytes]", gzip.GzipFile(fileobj=file, mode="rb"))
    else:
        raise UsageError(f"contents come as they are or with gzip, not as {encoding!r:.40}")
    try:
        while piece := source.read(_PIECE):
            yield piece
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"the contents cannot be unpacked: {error}") from error
