"""``rollenv view``"""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import typer

from rollenv.cli.common import console
from rollenv.core.errors import UsageError


def command(
    runs: list[Path] = typer.Argument(metavar="FOLDER...", help="Folder of a run; several runs are compared."),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Page to write. Default: report.html in the folder, or compare.html here for several."
    ),
    show: bool | None = typer.Option(
        None, "--open/--no-open", help="Open the page in a browser. Default: on a terminal with a desktop."
    ),
    serve: bool = typer.Option(False, "--serve", help="Serve all runs in a folder as pages until Ctrl-C."),
    host: str = typer.Option("127.0.0.1", help="Address to serve at; other machines reach it unless it is loopback."),
    port: int = typer.Option(8765, min=0, max=65535, help="Port to serve at; 0 picks a free one."),
) -> None:
    """Show training runs and evaluations in a browser: curves and every stored episode."""
    if show is None:
        desktop = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        show = bool(console.is_terminal and desktop)
    if serve:
        if len(runs) != 1 or out is not None:
            raise UsageError("--serve takes one folder, and no --out: `rollenv view --serve runs/`")
        from rollenv.report import make_server

        with make_server(runs[0], host, port) as server:
            console.print(f"serving {runs[0]} at {server.url} until Ctrl-C", soft_wrap=True, markup=False)
            if not server.is_private:
                console.print("anyone who reaches this address can read these runs", style="yellow")
            if show:
                webbrowser.open(server.url)
            server.serve_forever()
        return
    page = write_report(*runs, out=out)
    console.print(str(page), soft_wrap=True, markup=False)
    if show:
        webbrowser.open(page.resolve().as_uri())


def write_report(*runs: Path, out: Path | None = None) -> Path:
    """Write the page of a run, or the comparison of several, and return its path.

    Args:
        out: the page; by default ``report.html`` in the folder of the run, ``compare.html`` here for several.

    Raises:
        UsageError: if a folder holds no run, or the page cannot be written there.
    """
    from rollenv.report import write_report as write

    target = out or (runs[0] / "report.html" if len(runs) == 1 else Path("compare.html"))
    if target.suffix != ".html":
        raise UsageError(f"the page is an .html file, not {str(target)!r}")
    try:
        return write(runs, target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}; choose another path with --out") from error
