"""A page of results: for each panel, what was measured on it beside what others have published."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rollenv.core.errors import UsageError, reads
from rollenv.panels.panel import Panel
from rollenv.panels.shelf import PUBLISHED, folders, load_panel, panels
from rollenv.panels.verify import EPISODES, seal

_HEAD = "| agent | solved, % (95 %) | reward | tasks × episodes | failed | played with | source | what differs |"
_NUMBERS = ("n", "k", "success", "low", "high", "reward", "failed")


def read_results(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Read results from folders of `rollenv eval PANEL --out`, from their ``result.json``, or from folders of those.

    Raises:
        UsageError: a path holds no result on a panel, or one that was changed.
    """
    found = []
    for path in paths:
        folder = path.is_dir() and not (path / "result.json").exists()
        files = (sorted(path.rglob("result.json")) or sorted(path.rglob("*.json"))) if folder else [path]
        for file in files:
            file = file / "result.json" if file.is_dir() else file
            with reads(f"{file} is no result"):
                result = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(result, dict) or not isinstance(result.get("panel"), dict) or "agent" not in result:
                raise UsageError(f"{file} is a result on no panel: `rollenv eval PANEL --out FOLDER` makes one")
            if (file.parent / EPISODES).exists() and result.get("seal") != seal(file.parent, result):
                raise UsageError(f"{file.parent} was changed since: `rollenv panel verify {file.parent}` says how")
            for name in _NUMBERS:
                said: Any = result.get(name)
                if type(said) not in (int, float) or not abs(said) < 1e12:
                    raise UsageError(f"{file} is damaged: its {name} is {said!r:.80}, no number")
            found.append(result)
    return found


def write_page(results: Iterable[Mapping[str, Any]]) -> str:
    """Write the page as Markdown. Results whose panel has another hash than the installed one stand under that hash."""
    results = list(results)
    lines = [
        "# Results",
        "",
        "What was measured on [panels](https://github.com/rollenv/rollenv/blob/main/docs/guides/panels.md), beside "
        "what others have published on the same tasks. Written by `rollenv panel page`; a cell is empty where nobody "
        "has said it. Published numbers stand as their sources give them; they were not measured again.",
    ]
    for name in panels():
        own = [each for each in results if each["panel"].get("name") == name]
        others = [row for row in _published() if row["panel"] == name]
        if own or others:
            lines += ["", *_section(load_panel(name), own, others)]
    strange = sorted({str(each["panel"].get("name")) for each in results} - {*panels()})
    if strange:
        raise UsageError(f"there is no panel {strange[0]!r} here: install the package that has it")
    return "\n".join(lines) + "\n"


def _section(panel: Panel, own: Iterable[Mapping[str, Any]], others: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    yield f"## {panel.name}"
    yield ""
    yield f"{panel.about} {len(panel.members)} tasks, version {panel.version}, hash `{panel.hash}`."
    yield ""
    yield _HEAD
    yield "|---|---|---|---|---|---|---|---|"
    for each in sorted(own, key=lambda result: -float(result["success"])):
        said = {
            key: each.get(key) for key in ("temperature", "max_tokens", "calls", "prompt") if each.get(key) is not None
        }
        other = "" if each["panel"].get("hash") == panel.hash else f"another panel: hash {each['panel'].get('hash')}"
        if each["failed"]:
            other = "; ".join(filter(None, (other, f"{each['failed']} episodes failed and are not graded")))
        low, high = 100 * float(each["low"]), 100 * float(each["high"])
        yield _row(
            each["agent"],
            f"{100 * float(each['success']):.1f} ({low:.1f} to {high:.1f})",
            f"{float(each['reward']):.3f}",
            f"{each['n']} × {each['k']}",
            each["failed"],
            ", ".join(f"{key} {value}" for key, value in said.items()),
            f"rollenv {each.get('rollenv', '')}",
            other,
        )
    for row in others:
        yield _row(row["agent"], row["success"], "", "", "", "", row["source"], row["differs"])


def _row(*cells: object) -> str:
    return "| " + " | ".join(" ".join(str(cell).replace("|", "\\|").split()) for cell in cells) + " |"


def _published() -> list[dict[str, Any]]:
    files = [folder / PUBLISHED for folder in folders() if (folder / PUBLISHED).exists()]
    return [row for file in files for row in tomllib.loads(file.read_text(encoding="utf-8"))["rows"]]
