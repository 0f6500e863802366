"""The Sokoban recipe with GRPO and GiGPO over several seeds: success on unseen levels before and after, and the curves.

Runs that are already complete below ``--runs`` are not repeated, so the seeds can be trained one by one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import ROOT, header, save, table

ALGORITHMS = {"GRPO": ["algorithm.name=grpo"], "GiGPO": ["algorithm.name=gigpo", "algorithm.normalize_std=false"]}


def train(folder: Path, seed: int, settings: list[str]) -> list[dict[str, Any]]:
    """The metrics rows of one run of the recipe, which is trained or continued if need be."""
    command = [sys.executable, "-c", "from rollenv.cli.main import main; main()", "train", "sokoban"]
    command += [f"run_dir={folder}", f"seed={seed}", *settings]
    if not (folder / "report.html").exists():
        subprocess.run([*command, "--resume"] if folder.exists() else command, check=True)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def draw(curves: dict[str, list[list[dict[str, Any]]]], file: Path) -> None:
    """Success against training time; a thin line for each seed, a thick one for their mean."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "rollenv", "font.size": 11})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6))
    for (name, runs), colour in zip(curves.items(), ("#1f6feb", "#d1570a"), strict=True):
        points = [[(r["iteration"], r["eval/success"]) for r in run if "eval/success" in r] for run in runs]
        for run in points:
            axes.plot(*zip(*run, strict=True), color=colour, alpha=0.3, linewidth=1)
        mean = [sum(y for _, y in at) / len(at) for at in zip(*points, strict=True)]
        axes.plot([x for x, _ in points[0]], mean, color=colour, linewidth=2.2, label=f"{name}, {len(runs)} seeds")
    axes.axhline(0.85, color="#888", linewidth=0.8, linestyle=":")
    axes.set(xlabel="iteration", ylabel="success on 500 unseen levels", ylim=(0.2, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    file.write_text("\n".join(line.rstrip() for line in file.read_text().splitlines()) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "benchmark")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], help="more key=value settings")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in ALGORITHMS}
    rows = []
    for seed in range(options.seeds):
        for name, settings in ALGORITHMS.items():
            run = train(options.runs / f"{name}-{seed}", seed, settings + options.set)
            curves[name].append(run)
            before, *_, after = [r for r in run if "eval/success" in r]
            spent = sum(v for r in run for k, v in r.items() if k.startswith("time/"))
            rows.append((name, seed, interval(before), interval(after), f"{spent:.0f}"))
    draw(curves, ROOT / "docs" / "images" / "sokoban_curve.svg")
    head = ("algorithm", "seed", "before RL (95 %)", "after RL (95 %)", "seconds")
    note = (
        "Success on 500 unseen levels, sampled at temperature 1. The seconds hold the warm-up of the tiny "
        "model, where it was not cached, and all evaluations.\n\n"
    )
    save("sokoban_training", header() + "\n" + note + table(head, sorted(rows)))


def interval(row: dict[str, Any]) -> str:
    return f"{row['eval/success']:.3f} ({row['eval/low']:.3f} to {row['eval/high']:.3f})"


if __name__ == "__main__":
    main()
