"""A folder of runs as pages on this machine: an index, the page of each run, and comparisons."""

from __future__ import annotations

import html
import ipaddress
import shutil
import tempfile
import threading
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from rollenv.core.errors import UsageError
from rollenv.report import summary
from rollenv.report.build import write_report
from rollenv.report.episodes import STATUSES
from rollenv.report.sweep import open_runs
from rollenv.rollout.records.folders import find_runs, stamp

#: Maximum runs in one comparison.
_MOST = 6
#: Versions of a page to keep; the last one is current.
_VERSIONS = 2
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_INDEX_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'"


class ReportServer(ThreadingHTTPServer):
    """Serves the runs in a folder, read only. Pages are built on request, in a separate folder.

    Requests are looked up among the runs that were found; no path of a request ever reaches the file system.

    Args:
        port: 0 for a free one.
    """

    daemon_threads = True

    def __init__(self, root: Path, host: str, port: int):
        self.root, self.is_private = root, _is_loopback(host)
        self._pages = tempfile.TemporaryDirectory(prefix="rollenv-view-")
        self._made: dict[tuple[str, ...], list[tuple[Any, Path]]] = {}
        self._count = 0
        self._lock = threading.Lock()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            self._pages.cleanup()
            raise UsageError(
                f"cannot serve at {host}:{port}: {error.strerror or error}; choose another port, or --port 0"
            ) from error

    @property
    def url(self) -> str:
        """The address of the index."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"

    def server_close(self) -> None:
        super().server_close()
        self._pages.cleanup()

    def page_of(self, names: tuple[str, ...]) -> Path | None:
        """Return the page of these runs, rebuilt after a change; None if a run is missing."""
        runs = find_runs(self.root)
        if not names or len(names) > _MOST or any(name not in runs for name in names):
            return None
        now = tuple(stamp(runs[name]) for name in names)
        with self._lock:
            versions = self._made.setdefault(names, [])
            if not versions or versions[-1][0] != now:
                self._count += 1
                page = write_report([runs[name] for name in names], Path(self._pages.name) / f"{self._count}.html")
                versions.append((now, page))
                while len(versions) > _VERSIONS:
                    _, old = versions.pop(0)
                    old.unlink(missing_ok=True)
                    shutil.rmtree(old.with_name(f"{old.stem}_files"), ignore_errors=True)
            return versions[-1][1]

    def shard_of(self, names: tuple[str, ...], folder: str, number: int) -> Path | None:
        """Find a shard of a page; the previous version of the page counts too, because a browser may still show it."""
        with self._lock:
            folders = [page.with_name(f"{page.stem}_files") for _, page in self._made.get(names, [])]
        return next((found / f"{number}.js" for found in folders if found.name == folder), None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that a browser closed."""


def make_server(root: Path, host: str = "127.0.0.1", port: int = 0) -> ReportServer:
    """Make a server for a folder of runs; call ``serve_forever`` to run it and ``server_close`` to end it.

    Args:
        port: 0 picks a free one.

    Raises:
        UsageError: the folder does not exist, or the address cannot be used.
    """
    if not root.is_dir():
        raise UsageError(f"there is no folder {str(root)!r} to serve")
    return ReportServer(root, host, port)


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    timeout = 30
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if not self._is_for_us():
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this server answers to its own address only")
            return
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.split("/")[1:]]
        if parts == [""]:
            self._send(HTTPStatus.OK, "text/html", index_page(self.server.root).encode(), _INDEX_POLICY)
        elif parts == ["compare"]:
            names = parse_qs(url.query).get("run", [])[:_MOST]
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Location", "/runs/" + "/".join(quote(name, safe="") for name in names) + "/page")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif parts[0] == "runs" and parts[-1] == "page":
            try:
                page = self.server.page_of(tuple(parts[1:-1]))
            except UsageError:  # of --seeds, none has begun
                page = None
            if page is None:
                self._missing()
            else:
                self._send(HTTPStatus.OK, "text/html", page.read_bytes())
        elif parts[0] == "runs" and len(parts) > 2 and parts[-2].endswith("_files"):
            self._shard(tuple(parts[1:-2]), *parts[-2:])
        else:
            self._missing()

    do_HEAD = do_GET

    def _shard(self, names: tuple[str, ...], folder: str, file: str) -> None:
        number = file.removesuffix(".js")
        known = number.isascii() and number.isdigit() and len(number) < 8
        shard = self.server.shard_of(names, folder, int(number)) if known else None
        if shard is None or not shard.is_file():
            self._missing()
        else:
            self._send(HTTPStatus.OK, "text/javascript", shard.read_bytes())

    def _is_for_us(self) -> bool:
        """Return whether the request names this machine: no web page elsewhere may read what is served here."""
        if not self.server.is_private:
            return True
        host = (self.headers.get("Host") or "").rpartition(":")[0] or self.headers.get("Host") or ""
        return host == "localhost" or _is_loopback(host.strip("[]"))

    def _missing(self) -> None:
        self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page; the index is at /")

    def _send(self, status: HTTPStatus, kind: str, body: bytes, policy: str = "") -> None:
        self.send_response(status)
        headers = _HEADERS | {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in (headers | ({"Content-Security-Policy": policy} if policy else {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# -- the index ---------------------------------------------------------------------------------------------------------

_INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title><style>
{style}</style></head><body><main><h1>{title}</h1>{body}</main></body></html>
"""
_COLUMNS = ("", "Run", "Kind", "Success", "Environment", "Agent or model", "Time", "Changed")


def index_page(root: Path) -> str:
    """Return the table of all runs, newest first, with checkboxes for a comparison."""
    style = (resources.files("rollenv.report") / "page" / "style.css").read_text(encoding="utf-8")
    runs = find_runs(root)
    rows = []
    for name, path in runs.items():
        changed = max((nanoseconds for nanoseconds, _ in stamp(path)), default=0) / 1e9
        rows.append((changed, name, path))
    table = "".join(_index_row(when, name, path) for when, name, path in sorted(rows, reverse=True))
    head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
    body = (
        f'<form action="/compare"><div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>{table}</tbody>'
        '</table></div><p><button type="submit">Compare the chosen runs</button></p></form>'
        if rows
        else '<p class="dim">There is no run in this folder yet. <code>rollenv train sokoban</code> makes one.</p>'
    )
    return _INDEX.format(title=html.escape(f"Runs in {root.resolve().name}"), style=style, body=body)


def _index_row(when: float, name: str, path: Path) -> str:
    try:
        runs = open_runs(path)
    except UsageError:  # of --seeds, none has begun
        return ""
    run, success = runs[0], []
    for each in runs:
        facts = {label: value for label, value, _ in summary.tiles(each, [0] * len(STATUSES))}
        before, after = facts.get("Success before RL", ""), facts.get("Success after RL", "")
        shown = facts.get("Success") or (f"{before.partition(' (')[0]} → {after}" if after else before)
        success.append(f"{each.label}: {shown}" if len(runs) > 1 else shown)
    link = f'<a href="/runs/{quote(name, safe="")}/page">{html.escape(name)}</a>'
    box = f'<input type="checkbox" name="run" value="{html.escape(name)}" aria-label="Compare {html.escape(name)}">'
    texts = (
        f"{run.kind}, {len(run.seeds)} seeds" if run.seeds else run.kind,
        "; ".join(success),
        run.env_id,
        run.agent,
        facts.get("Time", ""),
        f"{datetime.fromtimestamp(when):%Y-%m-%d %H:%M}",
    )
    cells = (box, link, *(html.escape(str(text)[:200]) for text in texts))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
