"""``rollenv view``"""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import typer

from rollenv.cli.common import console
from rollenv.core import UsageError


def command(
    run: Path = typer.Argument(help="A run's folder."),
    show: bool = typer.Option(False, "--open", help="Open the page in a browser."),
) -> None:
    """Write a run's curves and episodes as one self-contained HTML page."""
    page = write_report(run)
    console.print(str(page), soft_wrap=True)
    if show:
        webbrowser.open(page.resolve().as_uri())


def write_report(path: Path) -> Path:
    """Write ``report.html`` into a run's folder and return its path.

    Raises:
        UsageError: if the folder holds no metrics.
    """
    from rollenv.report import render_report
    from rollenv.trainers.run_dir import RunDir, read_rows

    run = RunDir(path)
    metrics = read_rows(run.metrics_file)
    if not metrics:
        raise UsageError(f"{path} holds no metrics.jsonl with results; pass the folder of a training run")
    settings = json.loads(run.config_file.read_text()) if run.config_file.exists() else {}
    name = settings.get("env", {}).get("id", "")
    algorithm = settings.get("algorithm", {}).get("name", "")
    title = f"{path.resolve().name}: {algorithm} on {name}" if name else path.resolve().name
    page = render_report(title, metrics=metrics, episodes=read_rows(run.episodes_file), settings=settings)
    run.report_file.write_text(page, encoding="utf-8")
    return run.report_file
