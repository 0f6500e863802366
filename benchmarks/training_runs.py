"""What the training benchmarks share: a recipe under several algorithms and seeds, as a table and as curves."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]

ALGORITHMS = {"GRPO": ["algorithm.name=grpo"], "GiGPO": ["algorithm.name=gigpo", "algorithm.normalize_std=false"]}
_COLOURS = ("#1f6feb", "#d1570a", "#2da44e", "#8250df")


@dataclass(frozen=True)
class Picture:
    """What a drawing of curves shows besides the curves."""

    file: Path
    ylabel: str
    target: float
    """Where the dotted line is."""
    low: float
    """Where the axis of success starts."""


def options(description: str | None, runs: Path) -> argparse.Namespace:
    """The command line: ``runs``, ``seeds`` and ``set``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runs", type=Path, default=runs)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], help="more key=value settings")
    return parser.parse_args()


def train_all(recipe: str, folder: Path, seeds: int, settings: Sequence[str]) -> dict[str, list[Rows]]:
    """The metrics rows of every run, by algorithm and then seed."""
    folder.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[Rows]] = {name: [] for name in ALGORITHMS}
    for seed in range(seeds):
        for name, changes in ALGORITHMS.items():
            curves[name].append(train(recipe, folder / f"{name}-{seed}", seed, [*changes, *settings]))
    return curves


def train(recipe: str, folder: Path, seed: int, settings: Sequence[str]) -> Rows:
    """The metrics rows of one run of the recipe, which is trained or continued if need be."""
    command = [sys.executable, "-c", "from rollenv.cli.main import main; main()", "train", recipe]
    command += [f"run_dir={folder}", f"seed={seed}", *settings]
    if not (folder / "report.html").exists():
        subprocess.run([*command, "--resume"] if folder.exists() else command, check=True)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def evaluations(run: Rows) -> Rows:
    """The rows that hold an evaluation, the first of them before any update."""
    return [row for row in run if "eval/success" in row]


def seconds(run: Rows) -> float:
    """What the run took, with warm-up and evaluations."""
    return float(sum(value for row in run for key, value in row.items() if key.startswith("time/")))


def interval(row: dict[str, Any]) -> str:
    """The success of an evaluation with its 95 % interval (Wilson's)."""
    return f"{row['eval/success']:.3f} ({row['eval/low']:.3f} to {row['eval/high']:.3f})"


def draw(curves: Mapping[str, list[Rows]], picture: Picture) -> None:
    """Success against the iteration; a thin line for each seed, a thick one for their mean."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rollenv", "font.size": 11})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6))
    for (name, runs), colour in zip(curves.items(), _COLOURS, strict=False):
        points = [[(r["iteration"], r["eval/success"]) for r in evaluations(run)] for run in runs]
        for run in points:
            axes.plot(*zip(*run, strict=True), color=colour, alpha=0.3, linewidth=1)
        mean = [sum(y for _, y in at) / len(at) for at in zip(*points, strict=True)]
        axes.plot([x for x, _ in points[0]], mean, color=colour, linewidth=2.2, label=f"{name}, {len(runs)} seeds")
    axes.axhline(picture.target, color="#888", linewidth=0.8, linestyle=":")
    axes.set(xlabel="iteration", ylabel=picture.ylabel, ylim=(picture.low, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(picture.file, metadata={"Date": None})
    lines = picture.file.read_text().splitlines()
    picture.file.write_text("\n".join(line.rstrip() for line in lines) + "\n")
