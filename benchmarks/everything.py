"""Every benchmark at a small size, one after the other, and a page with all tables and plots: `make bench`.

The sizes are for a look at whether all is in order, not for figures to quote: those are in benchmarks/results, each
with the command that made it. What is not here (a data set, a peer's environment) is left out and said.
"""

from __future__ import annotations

import argparse
import datetime
import html
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT

#: Seconds after which a benchmark is ended.
_LIMIT = 600

_SHORT = ("model.warm_up.episodes=400", "model.warm_up.steps=60", "iterations=2", "checkpoint_every=2")


@dataclass(frozen=True)
class Script:
    """One benchmark, and how it is run small."""

    name: str
    args: str = ""
    settings: Sequence[str] = ()
    """Training settings, after ``--set``."""
    data: str = ""
    """A folder of $ROLLENV_DATA that it cannot do without."""
    peer: str = ""
    """An environment below .bench/ that it cannot do without; with ``python`` the one it runs in."""
    inside: bool = False

    @property
    def missing(self) -> str:
        """The missing requirement; empty if it can be run."""
        root = os.environ.get("ROLLENV_DATA", "")
        if self.data and not (root and Path(root, self.data).exists()):
            return f"$ROLLENV_DATA has no {self.data}"
        if self.peer and not (ROOT / ".bench" / self.peer / "bin" / "python").exists():
            return f".bench/{self.peer} is not there (make vllm gem peers)"
        return ""

    def command(self, out: Path) -> list[str]:
        python = str(ROOT / ".bench" / self.peer / "bin" / "python") if self.inside else sys.executable
        runs = ["--runs", str(out / "runs" / self.name)] if self.settings else []
        more = ["--set", *self.settings] if self.settings else []
        script = str(ROOT / "benchmarks" / f"{self.name}.py")
        return [python, script, *self.args.split(), *runs, *more]


SCRIPTS = (
    Script("games", "--seconds 0.1 --rounds 1 --only game:Sokoban", peer="gem"),
    Script("textarena_rewards", "--seeds 1"),
    Script("grading", data="gsm8k"),
    Script("webshop", "--only reference speed", data="webshop"),
    Script("alfworld", "--episodes 20 --games 2", data="alfred"),
    Script("sandbox", "-n 10", peer="jupyter"),
    Script("machines", "--small"),
    Script("sandbox_memory"),
    Script("schedule", "--steps 4 --seeds 1 --draws 200"),
    Script("collecting", "--groups 16 --rounds 1 --warm-up 100"),
    Script("rollout_real", "--steps 1 --episodes 60"),
    Script("server", "--seconds 0.3 --sessions 1 16", peer="openenv"),
    Script("server_failover", "--episodes 24 --wait 1"),
    Script("forge", "--packages toolz==1.0.0 --count 2"),
    Script("radix_cache", "--tasks 2 --group-size 2 --turns 2 --rounds 1 --at-once 4 1 --short 50"),
    Script("update_memory"),
    Script("gpu", "--toy"),
    Script("cluster", "--nodes 4 --steps 3 --groups 16 --turns 4 --rounds 1"),
    Script(
        "asynchronous",
        "--seeds 1 --staleness 1 --losses plain TIS --median 0.002",
        settings=(
            "model.warm_up.episodes=400",
            "model.warm_up.steps=60",
            "iterations=4",
            "checkpoint_every=4",
            "eval.every=2",
        ),
    ),
    Script(
        "early_gradients",
        "--seeds 1 --rounds 1 --orders 1 --delays 0.001",
        settings=("model.warm_up.steps=30", "rollout.groups_per_batch=4"),
    ),
    Script("trees", "--small --rounds 1"),
    Script("ranks", "--size small --groups 4 --rounds 2"),
    Script("trl_bridge", "--warm-up 20 --steps 2 --groups 4 --episodes 40", peer="trl", inside=True),
    Script("bridges", "--rounds 3"),
    Script("tools_training", "--seeds 1", settings=_SHORT),
    Script("main_job", "--steps 40 --groups 32"),
    Script("sokoban_training", "--seeds 1", settings=(*_SHORT, "eval.episodes=40", "rollout.groups_per_batch=16")),
    Script("webshop_training", "--seeds 1", settings=(*_SHORT, "eval.episodes=40")),
    Script("algorithms", "frozen_lake --seeds 1 --algorithms GRPO GiGPO", settings=_SHORT),
    Script("samples", "--seeds 1", settings=_SHORT),
)


@dataclass
class Done:
    """The outcome of a benchmark."""

    script: Script
    outcome: str
    seconds: float = 0.0
    said: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--only", nargs="*", default=[], help="names of scripts")
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chosen = [script for script in SCRIPTS if not given.only or script.name in given.only]
    done = []
    for number, script in enumerate(chosen, 1):
        print(f"{number}/{len(chosen)} {script.name}", flush=True)
        done.append(play(script, out))
        print(f"    {done[-1].outcome} after {done[-1].seconds:.0f} s", flush=True)
    page = out / "index.html"
    page.write_text(render(done, out), encoding="utf-8")
    failed = [each.script.name for each in done if each.outcome == "failed"]
    print(f"{len(done)} benchmarks in {sum(each.seconds for each in done):.0f} s; page to look at: {page}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def play(script: Script, out: Path) -> Done:
    """Run one benchmark, its results into a folder of their own."""
    if script.missing:
        return Done(script, f"left out: {script.missing}")
    folder = out / script.name
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.*"):
        old.unlink()
    environ = os.environ | {"ROLLENV_BENCH_OUT": str(folder), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    started = time.perf_counter()
    with open(folder / "log.txt", "wb") as log:
        try:
            code = subprocess.run(
                script.command(out), cwd=ROOT, env=environ, stdout=log, stderr=log, timeout=_LIMIT, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    said = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")[-3000:]
    return Done(script, "failed" if code else "done", time.perf_counter() - started, said)


# -- the page ----------------------------------------------------------------------------------------------------------

_STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#1f2328}"
    "table{border-collapse:collapse;margin:.8em 0;display:block;overflow-x:auto}td,th{padding:3px 10px;text-align:left;"
    "border-bottom:1px solid #d8dee4}pre{white-space:pre-wrap;background:#f6f8fa;padding:10px}h2{margin-top:2em}"
    ".dim{color:#656d76}.failed{color:#b42318}figure{margin:1em 0}svg{max-width:100%;height:auto}"
)


def render(done: Sequence[Done], out: Path) -> str:
    rows = "".join(
        f'<tr><td><a href="#{each.script.name}">{each.script.name}</a></td><td class="{each.outcome}">'
        f"{html.escape(each.outcome)}</td><td>{each.seconds:.0f} s</td></tr>"
        for each in done
    )
    cores = len(os.sched_getaffinity(0))
    parts = "".join(section(each, out) for each in done)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>rollenv benchmarks</title><style>{_STYLE}</style>'
        f"<h1>rollenv benchmarks, small sizes</h1><p>{cores} CPU cores, Python {sys.version.split()[0]}, "
        f"{datetime.date.today()}. Figures to quote are in benchmarks/results; these are for a look.</p>"
        f"<table><tr><th>benchmark</th><th>outcome</th><th>time</th></tr>{rows}</table>{parts}</html>\n"
    )


def section(each: Done, out: Path) -> str:
    head = f'<h2 id="{each.script.name}">{each.script.name}</h2>'
    if each.outcome != "done":
        said = f"<pre>{html.escape(each.said)}</pre>" if each.said else ""
        return f'{head}<p class="{each.outcome}">{html.escape(each.outcome)}</p>{said}'
    parts = [head]
    for file in sorted((out / each.script.name).glob("*.json")):
        data = json.loads(file.read_text(encoding="utf-8"))
        parts.append(f'<p class="dim">$ {html.escape(data["command"])}</p>')
        parts += [of_table(table) for table in data["tables"]]
        parts.append(f"<p>{html.escape(data['notes'])}</p>")
    if len(parts) == 1:
        parts.append(f"<pre>{html.escape(each.said)}</pre>")
    for file in sorted((out / each.script.name).glob("*.svg")):
        svg = file.read_text(encoding="utf-8")
        parts.append(f"<figure>{svg[svg.index('<svg') :]}</figure>")
    return "".join(parts)


def of_table(table: dict[str, Any]) -> str:
    head = "".join(f"<th>{html.escape(str(cell))}</th>" for cell in table["head"])
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(shown(cell))}</td>" for cell in row) + "</tr>" for row in table["rows"]
    )
    about = f"<p>{html.escape(table['about'].lstrip('# '))}</p>" if table["about"] else ""
    return f"{about}<table><tr>{head}</tr>{rows}</table>{plot(table)}"


def shown(cell: str | float) -> str:
    return cell if isinstance(cell, str) else f"{cell:g}"


_QUANTITY = re.compile(r"([+-]?[\d,]*\.?\d+)\s*([^\d\s(]{0,6})(?: \(.*\))?")


def _unit(cell: str | float) -> str | None:
    """The unit of a number in a table, empty if it has none; None for what is no number."""
    found = _QUANTITY.fullmatch(shown(cell).strip())
    return found[2] if found else None


def _number(cell: str | float) -> float:
    found = _QUANTITY.fullmatch(shown(cell).strip())
    return float(found[1].replace(",", "")) if found else 0.0


def plot(table: dict[str, Any]) -> str:
    """Bars for the columns of numbers, as an SVG; nothing where there are no two numbers to compare."""
    rows = table["rows"]
    columns = [
        at
        for at in range(1, len(table["head"]))
        if len(rows) > 1
        and len({_unit(row[at]) for row in rows if len(row) > at} - {None}) == 1
        and all(len(row) > at and _unit(row[at]) is not None for row in rows)
    ][:4]
    if not columns or len(rows) > 24:
        return ""
    rows = [[row[0], *(_number(cell) for cell in row[1:])] for row in rows]
    width, bar = 250, 16
    height = bar * len(rows) + 34
    parts = []
    for place, at in enumerate(columns):
        most = max(abs(row[at]) for row in rows) or 1.0
        x = 170 + place * width
        parts.append(f'<text x="{x}" y="14" font-weight="600">{html.escape(table["head"][at])[:34]}</text>')
        for line, row in enumerate(rows):
            y, long = 24 + line * bar, abs(row[at]) / most * (width - 90)
            parts.append(f'<rect x="{x}" y="{y}" width="{long:.1f}" height="{bar - 4}" fill="#1f6feb"/>')
            parts.append(f'<text x="{x + long + 4:.1f}" y="{y + 10}">{row[at]:g}</text>')
    for line, row in enumerate(rows):
        name = html.escape(shown(row[0]))[:26]
        parts.append(f'<text x="164" y="{34 + line * bar}" text-anchor="end">{name}</text>')
    size = f'width="{180 + width * len(columns)}" height="{height}"'
    return f'<figure><svg xmlns="http://www.w3.org/2000/svg" {size} font-size="11">{"".join(parts)}</svg></figure>'


if __name__ == "__main__":
    main()
