"""The page as files: one self-contained HTML for a small run, with a folder of shards beside it for a large one."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rollenv.core import drawing
from rollenv.report import summary
from rollenv.report.episodes import STATUSES, EpisodeIndex
from rollenv.report.plain import dumps, items, plain
from rollenv.report.sweep import open_runs, sweep_table
from rollenv.rollout.records.folders import Run

#: Maximum characters of shards inside the page; larger runs keep each shard in a separate file.
SMALL = 4_000_000

#: Files of the page, in their order.
SCRIPTS = (
    "base.js",
    "data.js",
    "picture.js",
    "board.js",
    "charts.js",
    "filters.js",
    "map.js",
    "tokens.js",
    "player.js",
    "compare.js",
    "main.js",
)


def write_report(folders: Sequence[Path], out: Path, where: str = "") -> Path:
    """Write the page of a run, or the comparison of several, and return its path.

    A large one has its shards in a folder beside it, named like it with ``_files`` at the end, from which the page
    loads what is looked at.

    Args:
        folders: folders of runs; or files of episodes, as :func:`~rollenv.rollout.records.stored.stored` reads them.
        out: the page, an ``.html`` file; an existing one is replaced.
        where: condition on the episodes that are shown.
    """
    runs = [run for folder in folders for run in open_chosen(folder, where)]
    shards = _Shards(out.with_name(f"{out.stem}_files"))
    shelf = EpisodeIndex(shards.put)
    for run in runs:
        shelf.add_run(run)
    index = shelf.finish()
    shards.finish()
    data = page_data(runs, index) | {"folder": shards.folder.name if shards.large else ""}
    partial = out.with_suffix(".partial")
    partial.write_text(page(data, shards.inline), encoding="utf-8")
    os.replace(partial, out)
    return out


def open_chosen(path: Path, where: str = "") -> list[Run]:
    """Open a folder or file, with those of its episodes that a condition chooses."""
    if not path.is_file() and not where:
        return open_runs(path)
    from rollenv.rollout.records.plain import to_plain
    from rollenv.rollout.records.stored import stored

    def chosen(place: Path) -> Iterator[dict[str, Any]]:
        for each in stored(place, where):
            yield {"iteration": each.iteration, "reward": each.trajectory.reward, **to_plain(each.trajectory)}

    runs = open_runs(path) if path.is_dir() else [Run(path, "evaluation", {}, {}, [], "")]
    for run in runs:
        run.chosen = functools.partial(chosen, run.path)
        run.result = {**(run.result if run.kind == "training" else {}), "where": where}
    return runs


def page_data(runs: Sequence[Run], index: dict[str, Any]) -> dict[str, Any]:
    """Return the data of the page, except the turns of episodes."""
    statuses = list(zip(index["columns"]["run"], index["columns"]["status"], strict=True))
    about = []
    for number, (name, run) in enumerate(zip(_names(runs), runs, strict=True)):
        ended = [
            reward
            for (its, status), reward in zip(statuses, index["columns"]["reward"], strict=True)
            if its == number and STATUSES[status] not in ("error", "open") and isinstance(reward, int | float)
        ]
        counts = [sum(pair == (number, status) for pair in statuses) for status in range(len(STATUSES))]
        notes = [f"{run.damaged} damaged lines of its files were left out."] if run.damaged else []
        if run.chosen and run.result["where"]:
            notes.append(f"Only episodes with {run.result['where']}.")
        if run.settings.get("members"):
            notes.append("Solved: the agent named first, in seat 0, won; a draw is no win. Rewards are its own.")
        if len(run.seeds) > 1:
            notes.append(
                f"Means of {sum(map(bool, run.seeds))} seeds; its episodes and settings are those of the first."
            )
        about.append(
            {
                "name": name,
                "kind": run.kind,
                "tiles": plain(summary.tiles(run, counts, sum(ended) / len(ended) if ended else None)),
                "tables": summary.tables(run),
                "metrics": plain(run.metrics),
                "settings": json.dumps(plain(run.settings), indent=2) if run.settings else "",
                "seeds": plain(run.seeds),
                "remarks": plain([each for each in items(run.result.get("remarks")) if len(items(each)) == 2]),
                "members": plain(items(run.settings.get("members"))),
                "note": " ".join(notes),
            }
        )
    return {
        "title": _title(runs),
        "runs": about,
        "tables": sweep_table(runs),
        "curves": summary.curves([row for run in runs for row in run.metrics], runs[0].env_id if runs else ""),
        "index": index,
        "grounds": drawing.grounds(),
        "pieces": drawing.shapes(),
    }


def page(data: dict[str, Any], shards: Sequence[str]) -> str:
    """Render the HTML. Its content policy allows only its own script and, with a folder of shards, the files beside it.

    Args:
        shards: JSON of the episodes' turns, embedded in the page; empty where shards are files.
    """
    files = resources.files("rollenv.report") / "page"
    read = {name: (files / name).read_text(encoding="utf-8") for name in ("page.html", "style.css", *SCRIPTS)}
    script = '"use strict";\n' + "\n".join(read[name] for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    beside = " 'self' file:" if data["folder"] else ""
    fill = {
        "policy": f"default-src 'none'; script-src 'sha256-{digest}'{beside}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        "title": html.escape(data["title"]),
        "style": read["style.css"],
        "data": dumps(data),
        "shards": "".join(
            f'<script type="application/json" id="shard-{number}">{text}</script>\n'
            for number, text in enumerate(shards)
        ),
        "script": script,
    }
    parts = read["page.html"].split("{{")
    return parts[0] + "".join(fill[name] + rest for name, _, rest in (part.partition("}}") for part in parts[1:]))


class _Shards:
    """A store of shards: in memory up to a limit, then in files."""

    def __init__(self, folder: Path):
        self.folder, self.large = folder, False
        self.inline: list[str] = []
        self._partial = folder.with_name(f"{folder.name}.partial")
        self._size = self._written = 0

    def put(self, text: str) -> None:
        self.inline.append(text)
        self._size += len(text)
        if self._size > SMALL:
            if not self.large:
                shutil.rmtree(self._partial, ignore_errors=True)
                self._partial.mkdir(parents=True)
            self.large = True
            for each in self.inline:
                # A string literal with JSON: the browser parses it as data, not as a program.
                (self._partial / f"{self._written}.js").write_text(
                    f"rollenvShard({self._written},{json.dumps(each)})\n", encoding="ascii"
                )
                self._written += 1
            self.inline = []

    def finish(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.large:
            os.replace(self._partial, self.folder)


def _names(runs: Sequence[Run]) -> list[str]:
    """Return unique names of the folders."""
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


def _title(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return " against ".join(_names(runs))
    run = runs[0]
    what = " on ".join(part for part in (run.agent if run.kind == "evaluation" else "", run.env_id) if part)
    return f"{run.name}: {what}" if what else run.name
