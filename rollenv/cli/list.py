"""``rollenv list``"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from rollenv.cli import completion
from rollenv.cli.common import console, print_result
from rollenv.core import cards
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import UsageError
from rollenv.core.needs import DataFiles, Need
from rollenv.core.plugins import entry_points
from rollenv.core.registry import DATA, NAMESPACES, list_envs


def command(
    context: typer.Context,
    pattern: str = typer.Argument(
        "", help="Show only ids that contain this text, such as sokoban or rg:*count*.", autocompletion=completion.ids
    ),
    every: bool = typer.Option(False, "--all", "-a", help="Show every id, not just the groups."),
    here: bool = typer.Option(False, "--here", help="Show only what works on this machine."),
    scores: bool = typer.Option(False, "--scores", help="Show what they were measured to be, as `catalogue` does."),
    index: str = typer.Option("", "--index", help="List the packages of an index instead: a folder or a URL."),
) -> None:
    """List environments, and what is missing for those that do not work here."""
    if scores:
        if every or here or index:
            raise UsageError("--scores shows all rows of the catalogue: leave --all, --here and --index away")
        program = context.find_root().command
        catalogue = isinstance(program, typer.core.TyperGroup) and program.get_command(context, "catalogue")
        if not catalogue:
            raise UsageError("`rollenv catalogue`, which --scores needs, is not installed: reinstall rollenv")
        words = [pattern, *(["--json"] if console.stderr else [])]
        raise typer.Exit(catalogue.main(words, "rollenv catalogue", standalone_mode=False) or 0)
    if index:
        _print_packages(index, pattern)
        return
    specs = [s for s in list_envs(pattern) if not (here and s.missing)]
    open_ended = [name for name in (DATA, *entry_points(NAMESPACES)) if pattern.lower() in f"{name}:"]
    rows = (
        {
            "id": s.id,
            "summary": cards.summary(s),
            "kwargs": s.kwargs,
            "abilities": sorted(s.abilities),
            "needs": [str(need) for need in s.needs],
            "missing": [str(need) for need in s.missing],
        }
        for s in specs
    )
    if print_result(rows):
        return
    if not specs and not open_ended:
        raise UsageError(
            f"no id contains {pattern!r}{' and works here' if here else ''}; `rollenv list` shows the groups"
        )
    if not specs:
        _print_rows(_open_ended(open_ended))
    elif pattern or every or here:
        _print_ids(specs)
    else:
        _print_groups(specs)


def _print_packages(index: str, pattern: str) -> None:
    """Print the packages of an index and their ids."""
    from rollenv.serve.catalog import read_catalog

    packages = [p for p in read_catalog(index) if any(pattern.lower() in text.lower() for text in (p.name, *p.ids))]
    if print_result([asdict(p) for p in packages]):
        return
    if not packages:
        raise UsageError(f"{index} has no package that contains {pattern!r}")
    _print_rows([("package", "version", "ids"), *((p.name, p.version, ", ".join(p.ids)) for p in packages)])


def _groups(specs: Sequence[EnvSpec]) -> list[tuple[str, list[EnvSpec]]]:
    """Group ids by namespace; what works here comes first, in the list and in each group."""
    groups = [(name, list(group)) for name, group in groupby(specs, key=lambda s: s.namespace)]
    groups.sort(key=lambda group: all(s.missing for s in group[1]))
    return [(name, sorted(group, key=lambda s: bool(s.missing))) for name, group in groups]


def _open_ended(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the namespaces whose ids contain a folder, a server or a package and so cannot be listed."""
    return [(f"{name}:", "any", "", _line(cards.family(name))) for name in names]


def _print_groups(specs: Sequence[EnvSpec]) -> None:
    rows = [("group", "ids", "here", "what it is")]
    for name, group in _groups(specs):
        works = sum(not s.missing for s in group)
        here = "all" if works == len(group) else str(works)
        rows.append((f"{name}:", str(len(group)), here, _line(cards.family(name))))
    _print_rows(rows + _open_ended((DATA, *entry_points(NAMESPACES))), right=(1, 2))
    if any(s.missing for s in specs):
        console.print("\n[bold]what the others need[/]")
        for name, group in _groups(specs):
            for text in _brief_needs([need for s in group for need in s.missing]):
                console.print(Padding(Text(f"{name}: {text}"), (0, 0, 0, 2)))
        console.print("  which file goes where: rollenv list math:")
    works = sum(not s.missing for s in specs)
    console.print(f"\n{len(specs)} environments, {works} work here")
    console.print("ids of a group: rollenv list game:    all ids: rollenv list --all")
    console.print("one id: rollenv info game:Sokoban-v0-easy")


def _brief_needs(missing: Sequence[Need]) -> list[str]:
    """Return a line for each way to install what a group lacks; data files share one."""
    folders = list(dict.fromkeys(need.folder for need in missing if isinstance(need, DataFiles)))
    rest = cards.needed(need for need in missing if not isinstance(need, DataFiles))
    lines = [f"{', '.join(names)}" + (f": {hint}" if hint else "") for hint, names in rest.items()]
    if folders:
        lines.append(f"data below $ROLLENV_DATA: {', '.join(folders)}")
    return lines


def _print_ids(specs: Sequence[EnvSpec]) -> None:
    works = sum(not s.missing for s in specs)
    for name, group in _groups(specs):
        console.print(f"[bold]{name}:[/] {escape(_line(cards.family(name)))}", no_wrap=True, overflow="ellipsis")
        texts = _without_repeats(group)
        _print_rows([("-" if s.missing else "✓", s.id, text) for s, text in zip(group, texts, strict=True)])
        for hint, names in cards.needed(need for s in group for need in s.missing).items():
            console.print(f"  needs {', '.join(names)}" + (f": {hint}" if hint else ""), markup=False, soft_wrap=True)
    console.print(f"{len(specs)} environments, {works} work here (✓)")


def _without_repeats(specs: Sequence[EnvSpec]) -> list[str]:
    """Return a summary of each spec: the differing arguments if the text repeats the previous one."""
    lines, before = [], ""
    for s in specs:
        text = _line(cards.summary(s))
        arguments = ", ".join(f"{name}={value}" for name, value in s.kwargs.items())
        lines.append(f"same: {arguments}" if text == before and arguments else text)
        before = text
    return lines


def _print_rows(rows: Sequence[tuple[str, ...]], *, right: Sequence[int] = ()) -> None:
    """Print columns; the last one is cut at the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = zip(row, widths, range(len(row)), strict=True)
        cells = [f"{cell:>{width}}" if i in right else f"{cell:<{width}}" for cell, width, i in padded]
        line = Text(" ".join(cells).rstrip())
        line.truncate(console.width, overflow="ellipsis")
        console.print(line, no_wrap=True)


def _line(text: str) -> str:
    """Remove URLs, which are too long for a line."""
    return re.sub(r" \((https?:|arXiv)[^)]*\)", "", text)
