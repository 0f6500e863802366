"""``rollenv check``"""

from __future__ import annotations

import pickle

import typer
from rich.progress import track
from rich.table import Table

from rollenv.checker import CHECKS, Finding, run_checks
from rollenv.cli.common import console
from rollenv.core import UsageError
from rollenv.envs.data.datasets import is_local
from rollenv.envs.webshop import files_are_here
from rollenv.registry import EnvSpec, list_envs, spec
from rollenv.traces import Broken, HelperProcess

_MARKS = {True: "[green]✓[/]", False: "[bold red]✗[/]", None: "[dim]·[/]"}


def command(
    env: list[str] = typer.Argument(None, help="Ids to check."),
    every: bool = typer.Option(False, "--all", help="Check every id that can be made here."),
    episodes: int = typer.Option(20, "--episodes", "-n", min=1, help="Episodes for the oracle and for random actions."),
    timeout: float = typer.Option(900.0, "--timeout", min=1.0, help="Seconds for the checks of one id."),
) -> None:
    """Prove what environments promise: one row an id, one column a property.

    Each environment is checked in another process, which is ended where the environment hangs or brings it down.
    """
    ids = [s.id for s in list_envs() if is_available(s)] if every else [spec(name).id for name in env or ()]
    if not ids:
        raise UsageError("name the ids to check, or pass --all")
    findings: dict[str, list[Finding]] = {}
    with HelperProcess(timeout) as process:
        for env_id in track(ids, "checking", console=console, transient=True, disable=not console.is_terminal):
            findings[env_id] = _findings(process, env_id, episodes)
    console.print(_table(findings))
    broken = [(env_id, f) for env_id, found in findings.items() for f in found if f.ok is False]
    for env_id, finding in broken:
        console.print(f"[bold red]✗[/] {env_id}, {finding.name}: ", end="")
        console.print(finding.detail, markup=False)
    console.print(f"{len(ids)} environments, {len(CHECKS)} properties, {len(broken)} broken  (· is not promised)")
    if broken:
        raise typer.Exit(1)


def _findings(process: HelperProcess, env_id: str, episodes: int) -> list[Finding]:
    try:
        pickle.dumps(env_spec := spec(env_id))
    except Exception:  # no other process can build it
        return run_checks(env_id, None, episodes)
    try:
        found: list[Finding] = process.call("rollenv.checker:checks_in_helper", env_spec, episodes)
        return found
    except Broken as error:
        return [Finding(name, False if name == "types" else None, str(error)) for name in CHECKS]


def is_available(env_spec: EnvSpec) -> bool:
    """Whether it can be made here: it needs nothing special, or only data that is here."""
    if env_spec.namespace == "webshop":
        return all(need == "data: webshop" and files_are_here() for need in env_spec.needs)
    return not env_spec.needs or is_local(env_spec.kwargs.get("dataset_name", ""), env_spec.kwargs.get("split", ""))


def _table(findings: dict[str, list[Finding]]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("id", no_wrap=True, vertical="bottom")
    for name in CHECKS:
        table.add_column(name.replace(" ", "\n"), justify="center", vertical="bottom")
    for env_id, found in findings.items():
        table.add_row(env_id, *(_MARKS[f.ok] for f in found))
    return table
