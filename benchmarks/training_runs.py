"""What the training benchmarks share: a recipe under several algorithms and seeds, as a table and as curves."""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.trainers.config import changed_keys, load_config
from rollenv.trainers.run_dir import RunDir, read_rows

Rows = list[dict[str, Any]]

ALGORITHMS = {
    "GRPO": ["algorithm.name=grpo", "algorithm.normalize_std=true"],
    "Dr. GRPO": ["algorithm.name=grpo", "algorithm.normalize_std=false"],
    "GiGPO": ["algorithm.name=gigpo", "algorithm.normalize_std=false"],
    "RLOO": ["algorithm.name=rloo"],
    "PPO": ["algorithm.name=ppo", "algorithm.whiten=true", "algorithm.critic.lr=1e-3"],
}
_COLOURS = ("#1f6feb", "#d1570a", "#2da44e", "#8250df", "#57606a", "#bf8700")


@dataclass(frozen=True)
class Picture:
    """Settings of a figure with curves."""

    file: Path
    ylabel: str
    target: float
    """Height of the dotted line."""
    low: float
    """Start of the axis of success."""
    against: tuple[str, ...] = ("iteration",)
    """A panel for each: "iteration", "episodes", "seconds of RL" or "processor seconds of RL"."""
    group_size: int = 8
    """Episodes of a task."""


def options(description: str | None, runs: Path, algorithms: Sequence[str] = ("GRPO", "GiGPO")) -> argparse.Namespace:
    """The command line: ``runs``, ``seeds``, ``algorithms`` (with a default) and ``set``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--runs", type=Path, default=runs)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithms", nargs="*", default=list(algorithms), choices=list(ALGORITHMS))
    parser.add_argument("--set", nargs="*", default=[], help="more key=value settings")
    return parser.parse_args()


def train_all(recipe: str, given: argparse.Namespace) -> dict[str, list[Rows]]:
    """The metrics rows of every run that the command line asks for, by algorithm and then seed."""
    given.runs.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[Rows]] = {name: [] for name in given.algorithms}
    for seed in range(given.seeds):
        for name in given.algorithms:
            settings = [*ALGORITHMS[name], *given.set]
            curves[name].append(train(recipe, given.runs / f"{name}-{seed}", seed, settings))
    return curves


def train(recipe: str, folder: Path, seed: int, settings: Sequence[str]) -> Rows:
    """The metrics rows of one run of the recipe, which is trained or continued if need be."""
    keys = [f"run_dir={folder}", f"seed={seed}", *settings]
    wanted = load_config(recipe, keys)
    if folder.exists():
        changes = changed_keys(RunDir.resume(folder)[1], wanted)
        if changes:
            sys.exit(f"{folder} holds a run with other settings ({'; '.join(changes)}); delete it, or pass --runs")
    rows = read_rows(folder / "metrics.jsonl")
    if not rows or rows[-1]["iteration"] < wanted.iterations:
        command = [sys.executable, "-c", "import maze; from rollenv.cli.main import main; main()", "train", recipe]
        path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
        resume = ["--resume"] if folder.exists() else []
        process = subprocess.Popen([*command, *keys, *resume], env=os.environ | {"PYTHONPATH": path})
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"training into {folder} ended with {os.waitstatus_to_exitcode(status)}")
        (folder / "peak_memory").write_text(f"{usage.ru_maxrss / 1e6:.1f}")  # GB
        rows = read_rows(folder / "metrics.jsonl")
    return list(rows)


def evaluations(run: Rows) -> Rows:
    """The rows that hold an evaluation, the first of them before any update."""
    return [row for row in run if "eval/success" in row]


#: Names of the times of each stage.
STAGES = {"warm-up": "begin", "playing": "collect", "updates": "update", "evaluations": "eval"}


def seconds(run: Rows, stage: str = "", clock: str = "time") -> float:
    """Return the duration of a run or of one of its stages.

    Args:
        run: its metrics.
        stage: a value of :data:`STAGES`; all by default.
        clock: "time" for wall time, "cpu" for processor time.
    """
    prefix = f"{clock}/{stage}"
    return float(sum(value for row in run for key, value in row.items() if key.startswith(prefix)))


def cost(run: Rows, stage: str = "") -> str:
    """Format the wall time, and the processor time if the run recorded it."""
    worked = seconds(run, stage, "cpu")
    return f"{seconds(run, stage):.0f}" + (f" ({worked:.0f})" if worked else "")


def interval(row: dict[str, Any]) -> str:
    """The success of an evaluation with its 95 % interval (Wilson's)."""
    return f"{row['eval/success']:.3f} ({row['eval/low']:.3f} to {row['eval/high']:.3f})"


def horizontal(run: Rows, against: str, group_size: int) -> list[float]:
    """The place of each evaluation of a run on the horizontal axis of a picture."""
    if against == "iteration":
        return [row["iteration"] for row in evaluations(run)]
    if against == "episodes":
        return [row.get("drawn", 0) * group_size for row in evaluations(run)]
    unit = "cpu" if against.startswith("processor") else "time"
    spent = itertools.accumulate(sum(row.get(f"{unit}/{part}", 0) for part in ("collect", "update")) for row in run)
    return [at for at, row in zip(spent, run, strict=True) if "eval/success" in row]


def draw(curves: Mapping[str, list[Rows]], picture: Picture) -> None:
    """Success of evaluations; a thin line for each seed, a thick one for their mean."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rollenv", "font.size": 11})
    from matplotlib import pyplot

    wide = len(picture.against) > 1
    figure, panels = pyplot.subplots(
        1, len(picture.against), figsize=(10 if wide else 7, 3.6), sharey=True, squeeze=False
    )
    for axes, against in zip(panels[0], picture.against, strict=True):
        for (name, runs), colour in zip(curves.items(), itertools.cycle(_COLOURS), strict=False):
            points = [
                list(
                    zip(
                        horizontal(run, against, picture.group_size),
                        (r["eval/success"] for r in evaluations(run)),
                        strict=True,
                    )
                )
                for run in runs
            ]
            for run in points:
                axes.plot(*zip(*run, strict=True), color=colour, alpha=0.3, linewidth=1)
            mean = [[sum(axis) / len(at) for axis in zip(*at, strict=True)] for at in zip(*points, strict=True)]
            axes.plot(
                *zip(*mean, strict=True),
                color=colour,
                linewidth=2.2,
                label=f"{name}, {len(runs)} seed{'s' * (len(runs) > 1)}",
            )
        axes.axhline(picture.target, color="#888", linewidth=0.8, linestyle=":")
        axes.set(xlabel=against, ylim=(picture.low, 1.0))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    panels[0][0].set(ylabel=picture.ylabel)
    panels[0][-1].legend(frameon=False, loc="best", ncols=1 + len(curves) // 4 if len(panels[0]) == 1 else 1)
    figure.tight_layout()
    figure.savefig(picture.file, metadata={"Date": None})
    lines = picture.file.read_text().splitlines()
    picture.file.write_text("\n".join(line.rstrip() for line in lines) + "\n")
