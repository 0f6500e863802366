"""Static files of the page."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

#: The page uses only files and answers of this server, and other sites can neither frame nor read it.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}

#: Files shared with the report of a run: source, imports to prepend, exports to append.
_SHARED = {
    "base.css": ("style.css", "", ""),
    "base.js": ("base.js", "", "export {el, svgNode, short, plural, visible, pre, icon};\n"),
    "picture.js": (
        "picture.js",
        'import {el, svgNode, visible, pre} from "./base.js";\n',
        "export {picture, pictures};\n",
    ),
}


@dataclass(frozen=True)
class _File:
    body: bytes
    packed: bytes
    tag: str
    kind: str


class PageFiles:
    """All static files, read once."""

    def __init__(self) -> None:
        own, shared = resources.files(__package__) / "files", resources.files("rollenv.report") / "page"
        texts = {each.name: each.read_text(encoding="utf-8") for each in own.iterdir() if each.is_file()}
        for name, (source, head, tail) in _SHARED.items():
            texts[name] = head + (shared / source).read_text(encoding="utf-8") + tail
        self._files: dict[str, _File] = {}
        for name, text in texts.items():
            body, kind = text.encode(), f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            self._files[name] = _File(body, gzip.compress(body, mtime=0), tag, kind)

    async def index(self, request: Request) -> Response:
        return self._sent("index.html", request)

    async def file(self, request: Request) -> Response:
        return self._sent(request.path_params["name"], request)

    def _sent(self, name: str, request: Request) -> Response:
        file = self._files.get(name)
        if file is None:
            return PlainTextResponse("there is no such file\n", 404, HEADERS)
        headers = HEADERS | {"ETag": file.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=file.kind)
        return Response(file.body, headers=headers, media_type=file.kind)
