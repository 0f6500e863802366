"""``rollenv panel``"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from rollenv.cli.common import console, error_console, key_values, print_result, print_table, progress
from rollenv.core.errors import UsageError, writes
from rollenv.core.trust import TRUST_HELP
from rollenv.rollout.workers.factory import WORKERS_HELP, make_workers

app = typer.Typer(no_args_is_help=True, help="Fixed lists of tasks, on which results compare.")

_PANEL = typer.Argument(help="Name of a panel, or its file NAME.toml.")
_TRUST = typer.Option(False, "--trust", help=TRUST_HELP)
_DRAWS = typer.Option(2000, "--draws", min=1, help="Training tasks to compare with where they have no end.")


def make(
    env: str = typer.Argument(help="Environment id."),
    settings: list[str] = typer.Argument(
        None, metavar="[ID|KEY=VALUE]...", help="Further environments, and arguments of all, such as split=test."
    ),
    name: str = typer.Option(..., "--name", help="Name of the panel."),
    n: int | None = typer.Option(None, "-n", min=1, help="Members of each environment. Default: all of a data set."),
    training: list[str] = typer.Option(
        None, "--training", metavar="KEY=VALUE|same", help="Arguments of tasks for training, or the panel's own."
    ),
    alike: bool = typer.Option(False, "--alike", help="Keep members that are alike, as a published split has them."),
    seed: int = typer.Option(1_000_000_000, "--seed", "-s", min=0, help="Seed of the first member."),
    k: int = typer.Option(1, "-k", min=1, help="Episodes of each member."),
    temperature: float | None = typer.Option(None, min=0, help="Sampling temperature of whoever plays it."),
    max_tokens: int | None = typer.Option(None, min=1, help="Maximum number of tokens of an answer."),
    about: str = typer.Option("", "--about", help="One sentence about it."),
    source: str = typer.Option("", "--source", help="Whose data it needs, and their licence."),
    out: Path = typer.Option(Path("."), "--out", "-o", help="Folder for NAME.toml and NAME.jsonl."),
    draws: int = _DRAWS,
) -> None:
    """Make a panel of the first tasks of a data set, or of ascending seeds.

    What is alike an earlier member or a task for training is passed over.
    """
    import dataclasses

    from rollenv.panels.check import check
    from rollenv.panels.make import assemble, draw_part
    from rollenv.panels.panel import Protocol

    ids = list(dict.fromkeys([env, *(text for text in settings or () if "=" not in text)]))
    kwargs = key_values(text for text in settings or () if "=" in text)
    trained = None
    if training:
        trained = kwargs if training == ["same"] else key_values(training)
    if trained is None and "split" in kwargs and kwargs["split"] != "train":
        error_console.print("name the tasks for training, as in --training split=train, to keep them out", style="dim")
    drawn = []
    for each in ids:
        with progress(f"members of {each}", n) as show:
            drawn.append(draw_part(each, n, kwargs, seed=seed, training=trained, alike=alike, draws=draws, watch=show))
    fixed = Protocol(k=k, temperature=temperature, max_tokens=max_tokens)
    panel = assemble(name, drawn, fixed, about=about, source=source)
    if alike and trained is not None:
        with progress("looked at", len(panel.members)) as show:
            panel = dataclasses.replace(panel, alike_in_training=len(check(panel, draws, show).alike))
    file = panel.save(out)
    print_result({**panel.identity, "members": len(panel.members), "file": str(file)})
    console.print(f"{len(panel.members)} members, hash {panel.hash}: {file}", markup=False, soft_wrap=True)


def list_() -> None:
    """List the panels that are installed."""
    from rollenv.panels import PanelError, load_panel, panels

    every = []
    for name in panels():
        try:
            every.append(load_panel(name))
        except (PanelError, UsageError) as error:  # of another package
            error_console.print(f"left out: {error}", markup=False, soft_wrap=True)
    if not print_result([{**p.identity, "members": len(p.members)} for p in every]):
        print_table(["panel", "members", "hash", "about"], ([p.name, len(p.members), p.hash, p.about] for p in every))


def show(panel: str = _PANEL, trust: bool = _TRUST) -> None:
    """Show what a panel fixes."""
    from rollenv.core.arguments import toml_value
    from rollenv.panels import load_panel
    from rollenv.panels.panel import plain

    found = load_panel(panel, trust=trust)
    if print_result({**plain(found), "members": [member._asdict() for member in found.members]}):
        return
    console.print(f"{found.name}, version {found.version}, hash {found.hash}", markup=False, style="bold")
    for text in (found.about, found.source):
        if text:
            console.print(text, markup=False, soft_wrap=True)
    rows = []
    for part in found.parts:
        settings = ", ".join(f"{key}={toml_value(value)}" for key, value in part.kwargs.items())
        against = "none" if part.training is None else toml_value(part.training)
        rows.append([part.env, part.members, settings, " ".join(part.wrappers), against])
    print_table(["environment", "members", "arguments", "wrappers", "training tasks"], rows)
    fixed = found.protocol.model_dump(exclude_none=True)
    console.print("fixed: " + ", ".join(f"{key}={value}" for key, value in fixed.items()), markup=False)
    if found.alike_in_training:
        console.print(f"{found.alike_in_training} members are alike a task for training: the published split leaks")


def check(
    panel: str = _PANEL,
    draws: int = _DRAWS,
    workers: str = typer.Option("", "--workers", "-w", help=f"Begin each member there, too. {WORKERS_HELP}"),
    trust: bool = _TRUST,
) -> None:
    """Check that its tasks are the same here, none occurs twice, and none is alike a task for training.

    The members are made in this process and in a fresh one with another seed for hashes. The exit code is 1 if
    something is wrong.
    """
    from rollenv.panels import load_panel
    from rollenv.panels.check import check as check_panel
    from rollenv.panels.check import check_elsewhere, check_workers

    found = load_panel(panel, trust=trust)
    with progress("members", len(found.members)) as show:
        findings = check_panel(found, draws, show)
    problems = findings.problems(found)
    problems += [f"in a fresh process: {text}" for text in check_elsewhere(found)]
    if workers:
        with make_workers(workers) as pool, progress("begun", len(found.members)) as show:
            problems += [f"in {workers}: {text}" for text in check_workers(found, pool, show)]
    if not print_result({**found.identity, **vars(findings), "problems": problems}):
        compared = ", ".join(f"{number} of {env}" for env, number in findings.compared.items())
        alike = f"; {len(findings.alike)} alike a task for training, {len(findings.equal)} equal" if compared else ""
        number = len(findings.repeating)
        repeating = f", {number} of them alike an earlier one" if number else ""
        console.print(
            f"{found.name} ({found.hash}): {findings.members} members{repeating}{alike}"
            f"; compared with {compared or 'no tasks for training: it names none'}",
            markup=False,
            soft_wrap=True,
        )
    _end(problems)


def verify(
    folder: Path = typer.Argument(help="Folder of `rollenv eval PANEL --out`, or of a run, with --panel."),
    panel: str = typer.Option("", "--panel", help="The panel's file, or for a run the panel to compare with."),
    sample: int | None = typer.Option(None, "--sample", min=0, help="Episodes to play again. Default: all."),
    workers: str = typer.Option("2", "--workers", "-w", help=WORKERS_HELP),
    trust: bool = _TRUST,
) -> None:
    """Count a result again from its episodes, and play them again; or count the panel's tasks that a run trained on.

    The exit code is 1 if something is wrong.
    """
    from rollenv.panels import is_panel, load_panel
    from rollenv.panels.check import overlap
    from rollenv.panels.trained import panel_of_run, trained_tasks
    from rollenv.panels.verify import result_panel
    from rollenv.panels.verify import verify as verify_result

    problems: list[str]
    if (folder / "metrics.jsonl").exists():
        chosen = load_panel(panel or panel_of_run(folder), trust=trust)
        tasks = trained_tasks(folder, trust=trust)
        found = overlap(chosen, tasks)
        said = f"{len(tasks)} tasks were trained on, {len(found)} members of {chosen.name} among them or alike"
        problems = [f"{said}; the first: {found[0]}"] if found else []
    else:
        named = result_panel(folder)
        if not named and not panel:
            raise UsageError(f"{folder} is a result on no panel: `rollenv eval PANEL --out FOLDER` makes one")
        name = panel or str((named or {}).get("name"))
        if not (panel or is_panel(name)):
            raise UsageError(f"{folder} is on the panel {name!r:.80}, which is not installed: name its file by --panel")
        chosen = load_panel(name, trust=trust)
        with make_workers(workers) as pool, progress("played again", sample) as show:
            problems, episodes, again = verify_result(folder, chosen, pool, replays=sample, watch=show)
        said = (
            f"{folder}: {episodes} episodes counted again on {chosen.name} ({chosen.hash}), {again} of them played "
            f"again: {len(problems)} problems"
        )
    print_result({**chosen.identity, "folder": str(folder), "problems": problems})
    console.print(said, markup=False, soft_wrap=True)
    _end(problems)


def page(
    results: list[Path] = typer.Argument(help="Folders of `rollenv eval PANEL --out`, or their result.json."),
    out: Path = typer.Option(..., "--out", "-o", help="File to write."),
) -> None:
    """Write a page of results in Markdown: for each panel, the results beside published numbers."""
    from rollenv.panels.page import read_results, write_page

    text = write_page(read_results(results))
    with writes(out):
        out.write_text(text, encoding="utf-8")
    print_result({"page": str(out)})
    console.print(f"written to {out}", markup=False, soft_wrap=True)


def _end(problems: list[str]) -> None:
    for text in problems:
        error_console.print("[bold red]✗[/] ", end="")
        error_console.print(text, markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def commands() -> dict[str, Any]:
    """The commands below ``rollenv panel``."""
    return {"make": make, "list": list_, "show": show, "check": check, "verify": verify, "page": page}
