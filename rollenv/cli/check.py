"""``rollenv check``"""

from __future__ import annotations

import pickle
import string
from dataclasses import asdict, replace

import typer
from rich.columns import Columns
from rich.text import Text

from rollenv.cli import completion
from rollenv.cli.common import console, id_of, key_values, print_result, print_table, progress
from rollenv.core.checker import CHECKS, Finding, cannot, run_checks
from rollenv.core.checker.digests import HelperProcess
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import Broken, UsageError
from rollenv.core.registry import list_envs, spec

#: Column headings of the table.
_LETTERS = dict(zip(CHECKS, string.ascii_letters, strict=False))
_MARKS = {True: "[green]✓[/]", False: "[bold red]✗[/]", None: "[dim]·[/]"}


def command(
    env: list[str] = typer.Argument(
        None,
        metavar="[ID|KEY=VALUE]...",
        help="Ids to check, and arguments of all of them, such as images=only.",
        autocompletion=completion.ids,
    ),
    every: bool = typer.Option(False, "--all", help="Check every id that can be made here."),
    episodes: int = typer.Option(
        20, "--episodes", "-n", min=1, help="Episodes each for the oracle and random actions."
    ),
    timeout: float = typer.Option(900.0, "--timeout", min=1.0, help="Time limit in seconds for the checks of one id."),
) -> None:
    """Check what environments promise: one row per id, one column per property.

    Each environment is checked in a separate process, which is killed if the environment hangs.
    """
    given = key_values(text for text in env or () if "=" in text)
    named = [spec(id_of(text)) for text in env or () if "=" not in text]
    specs = [s for s in list_envs() if not s.missing] if every else named
    ids = [s.id for s in specs]
    if not ids:
        raise UsageError("name the ids to check, or pass --all")
    findings: dict[str, list[Finding]] = {}
    with HelperProcess(timeout) as process, progress("checked", len(ids)) as show:
        for env_spec, env_id in zip(specs, ids, strict=True):
            findings[env_id] = _findings(process, replace(env_spec, kwargs={**env_spec.kwargs, **given}), episodes)
            show(len(findings), f"the last: {env_id}")
    rows = [
        {"id": env_id, "ok": all(f.ok is not False for f in found), "findings": [asdict(f) for f in found]}
        for env_id, found in findings.items()
    ]
    print_result({"environments": rows})
    _show(findings)


def _show(findings: dict[str, list[Finding]]) -> None:
    console.print(Columns([f"[bold]{letter}[/] {name}" for name, letter in _LETTERS.items()], padding=(0, 2)))
    console.print()
    rows = ([env_id, *(Text.from_markup(_MARKS[f.ok]) for f in found)] for env_id, found in findings.items())
    print_table(["id", *_LETTERS.values()], rows, ids=True)  # names would not fit beside an id in 80 columns
    broken = [(env_id, f) for env_id, found in findings.items() for f in found if f.ok is False]
    for env_id, finding in broken:
        console.print(f"[bold red]✗[/] {env_id}, {finding.name}: ", end="")
        console.print(finding.detail, markup=False)
    console.print(f"{len(findings)} environments, {len(CHECKS)} properties, {len(broken)} broken  (· is not promised)")
    if broken:
        raise typer.Exit(1)


def _findings(process: HelperProcess, env_spec: EnvSpec, episodes: int) -> list[Finding]:
    try:
        pickle.dumps(env_spec)
    except Exception:  # no other process can build it
        return run_checks(env_spec, None, episodes)
    try:
        found: list[Finding] = process.call("rollenv.core.checker.checks:checks_in_helper", env_spec, episodes)
        return found
    except Broken as error:
        return cannot(f"{error}{'; --timeout gives it more' * ('did not answer' in str(error))}")
