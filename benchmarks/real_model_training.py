"""SmolLM2-135M-Instruct under RL: success on unseen tasks before and after, time, memory and the curves.

Runs that are already complete below ``--runs`` are not repeated, so the seeds can be trained one by one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from common import IMAGES, ROOT, header, save, table
from training_runs import Picture, Rows, cost, draw, evaluations, interval, train

#: Recipe and settings of each run.
RUNS = {
    "sums, all weights": ("smollm2_arithmetic", []),
    "sums, LoRA": ("smollm2_arithmetic", ["model.lora.rank=16", "optimizer.lr=4e-4"]),
    "guess, LoRA": ("smollm2_guess", []),
}


def tasks_interval(row: dict[str, Any]) -> str:
    """The interval over tasks, where several episodes have the same one."""
    return f"{row['eval/tasks_low']:.3f} to {row['eval/tasks_high']:.3f}" if "eval/tasks_low" in row else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "real_model")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(RUNS), choices=list(RUNS))
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[Rows]] = {name: [] for name in given.only}
    rows = []
    for seed in range(given.seeds):
        for name in given.only:
            recipe, settings = RUNS[name]
            folder = given.runs / f"{name.replace(', ', '-').replace(' ', '_')}-{seed}"
            run = train(recipe, folder, seed, settings)
            curves[name].append(run)
            before, *_, after = evaluations(run)
            peak = (folder / "peak_memory").read_text() if (folder / "peak_memory").exists() else ""
            stages = [cost(run, stage) for stage in ("collect", "update", "eval")]
            cells = (interval(before), interval(after), tasks_interval(after), *stages, cost(run), peak)
            rows.append((name, seed, *cells))
    file = IMAGES / "real_model_curve.svg"
    draw(curves, Picture(file, "success on unseen tasks", 0.85, 0.0, ("processor seconds of RL",)))
    stages = ("playing, s", "updates, s", "evaluations, s", "all, s", "peak memory, GB")
    head = ("what", "seed", "before RL (95 %)", "after RL (95 %)", "after, 95 % over tasks", *stages)
    note = "SmolLM2-135M-Instruct in float32, sampled at temperature 1 before and after, on tasks never trained on. "
    note += "Seconds on the clock, and of processor time.\n\n"
    save("real_model_training", header() + "\n" + note + table(head, sorted(rows)))


if __name__ == "__main__":
    main()
