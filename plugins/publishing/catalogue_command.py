"""``rollenv catalogue``"""

from __future__ import annotations

from pathlib import Path

import typer

from rollenv.cli import completion
from rollenv.cli.common import AgentOptions, console, make_agent, print_result, print_table, progress
from rollenv.core.errors import UsageError, writes
from rollenv.core.registry import list_envs, spec


def command(
    pattern: str = typer.Argument("", help="Only ids that contain this text.", autocompletion=completion.ids),
    file: Path = typer.Option(
        None, "--file", "-f", metavar="FILE", help="The catalogue. Default: the one that comes with rollenv."
    ),
    measure: bool = typer.Option(False, "--measure", help="Measure what is missing or changed, and add it to --file."),
    agents: list[str] = typer.Option(
        None, "--agent", "-a", help="With --measure: a further player, such as local:MODEL. May be repeated."
    ),
    episodes: int = typer.Option(8, "-n", min=8, help="Episodes of each check and each player."),
    timeout: float = typer.Option(
        120.0, "--timeout", min=5.0, help="Seconds for the checks of one environment, and for an episode of --agent."
    ),
    page: Path = typer.Option(None, "--page", metavar="FILE", help="Write the table as an HTML page."),
    max_tokens: int = typer.Option(None, min=1, help="Maximum number of tokens per answer of --agent."),
    precision: str = typer.Option("", help="bfloat16: faster matrix products of a local model on a CPU."),
) -> None:
    """Show what environments were measured to be: success by random play, cheats and the expert, and faults.

    A row whose environment has changed since is marked as stale.
    """
    from rollenv.plugins.publishing import catalogue
    from rollenv.plugins.publishing.accept_command import from_anywhere

    found = list_envs(pattern) or [spec(from_anywhere(pattern))]  # files and other projects' are not listed
    specs = {each.id: each for each in found}
    if measure:
        if file is None:
            raise UsageError("--measure needs --file, to which rows are added")
        here = [each for each in specs.values() if not each.missing]
        options = AgentOptions(max_tokens=max_tokens, precision=precision)
        players = {name: make_agent(name, options.only(name)) for name in agents or ()}
        with progress("measured", len(here)) as show:
            for number, row in enumerate(catalogue.measure(here, file, players, episodes, timeout), start=1):
                show(number, f"the last: {row['id']}")
    rows = [row for env_id, row in catalogue.read(file or catalogue.OWN).items() if env_id in specs]
    if not rows:
        raise UsageError(f"no row of {pattern!r}; `rollenv catalogue {pattern} --measure --file FILE` measures it")
    stale = {row["id"] for row in rows if row["fingerprint"] != catalogue.fingerprint(specs[row["id"]])}
    if page:
        with writes(page):
            page.write_text(
                f'<!doctype html><meta charset="utf-8"><title>Environments</title>\n{catalogue.page(rows)}', "utf-8"
            )
    plain = [{**row, "stale": row["id"] in stale, "criteria": catalogue.criteria(row)} for row in rows]
    print_result({"environments": plain})
    print_table(catalogue.COLUMNS, [catalogue.cells(row, row["id"] in stale) for row in rows], ids=True)
    if page:
        console.print(f"written to {page}", soft_wrap=True, markup=False)
