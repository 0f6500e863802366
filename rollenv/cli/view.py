"""``rollenv view``"""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import typer

from rollenv.cli.common import console, print_result
from rollenv.cli.export import WHERE_HELP
from rollenv.core.errors import UsageError, writes


def command(
    runs: list[Path] = typer.Argument(
        metavar="RUN...", help="Folder of a run or file of episodes; several are compared."
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Page to write. Default: report.html in the folder, or compare.html for several."
    ),
    show: bool | None = typer.Option(
        None, "--open/--no-open", help="Open the page in a browser. Default: on a terminal with a desktop."
    ),
    serve: bool = typer.Option(False, "--serve", help="Serve all runs in a folder as pages until Ctrl-C."),
    where: str = typer.Option("", "--where", help=WHERE_HELP),
    host: str = typer.Option("127.0.0.1", help="Address to serve at; other machines reach it unless it is loopback."),
    port: int = typer.Option(8765, min=0, max=65535, help="Port to serve at; 0 picks a free one."),
) -> None:
    """Show training runs and evaluations in a browser: curves and every stored episode."""
    if show is None:
        desktop = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        show = bool(console.is_terminal and desktop)
    if serve:
        if len(runs) != 1 or out is not None or where:
            raise UsageError("--serve takes one folder, and no --out or --where: `rollenv view --serve runs/`")
        from rollenv.report import make_server

        with make_server(runs[0], host, port) as server:
            console.print(f"serving {runs[0]} at {server.url} until Ctrl-C", soft_wrap=True, markup=False)
            if not server.is_private:
                console.print("anyone who reaches this address can read these runs", style="yellow")
            if show:
                webbrowser.open(server.url)
            server.serve_forever()
        return
    page = write_report(*runs, out=out, where=where)
    print_result({"page": str(page)})
    console.print(str(page), soft_wrap=True, markup=False)
    if show:
        webbrowser.open(page.resolve().as_uri())


def write_report(*runs: Path, out: Path | None = None, where: str = "") -> Path:
    """Write the page of a run, or the comparison of several, and return its path.

    Args:
        out: the page; by default ``report.html`` in the folder of the run (``chosen.html`` with a condition),
            ``NAME.html`` beside a file, and ``compare.html`` here for several.
        where: condition on the episodes that are shown.

    Raises:
        UsageError: if a folder holds no run, or the page cannot be written there.
    """
    from rollenv.report import write_report as write

    target = out or Path("compare.html")
    if out is None and len(runs) == 1:
        run = runs[0]
        target = run.with_suffix(".html") if run.is_file() else run / ("chosen.html" if where else "report.html")
    if target.suffix != ".html":
        raise UsageError(f"the page is an .html file, not {str(target)!r}")
    with writes(target):
        return write(runs, target, where)
