"""``rollenv list``"""

from __future__ import annotations

import json as json_module

import typer
from rich.table import Table

from rollenv.cli.common import console
from rollenv.registry import ABILITIES, list_envs


def command(
    pattern: str = typer.Argument("", help="Show only ids that contain this."),
    json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """List the registered environments and what each can do."""
    specs = list_envs(pattern)
    if json:
        rows = [{"id": s.id, "kwargs": s.kwargs, "abilities": sorted(s.abilities), "needs": s.needs} for s in specs]
        console.print_json(json_module.dumps(rows, default=str))
        return
    names = sorted(ABILITIES)
    table = Table("id", *(n.replace("_", " ") for n in names), "needs", box=None, header_style="bold")
    for s in specs:
        table.add_row(s.id, *("✓" if n in s.abilities else "" for n in names), ", ".join(s.needs))
    console.print(table)
    console.print(f"{len(specs)} environments")
