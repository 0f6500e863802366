"""The tools recipe with GRPO and GiGPO over several seeds, and its models in `rollenv bench` before and after.

Runs that are already complete below ``--runs`` are not repeated, so the seeds can be trained one by one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

from common import IMAGES, ROOT, header, save, table
from training_runs import Picture, draw, evaluations, options, seconds, train, train_all

from rollenv.agents.local import LocalAgent
from rollenv.bench import Benchmark, compare, run, suite

#: Tasks in `rollenv bench`, and the seed of the first: neither training nor its evaluations play them.
_TASKS, _SEED = 500, 1_000_000


def main() -> None:
    given = options(__doc__, ROOT / "runs" / "benchmark-tools")
    curves = train_all("tools", given)
    draw(curves, Picture(IMAGES / "tools_curve.svg", "success on unseen tasks", target=0.9, low=0.0))
    start = {seed: bench(untrained(given, seed)) for seed in range(given.seeds)}
    body, gains = [], []
    for name, runs in curves.items():
        for seed, rows in enumerate(runs):
            after = bench(given.runs / f"{name}-{seed}")
            change = compare(start[seed].trajectories, after.trajectories).total
            gains.append(change)
            told = f"{change.difference:+.3f} ({change.low:+.3f} to {change.high:+.3f})"
            body.append((name, seed, shown(start[seed]), shown(after), told, f"{seconds(rows):.0f}"))
    head = ("algorithm", "seed", "before RL (95 %)", "after RL (95 %)", "difference (95 %)", "seconds")
    invalid = mean(result.total.metrics["invalid_calls"] for result in start.values())
    note = (
        f"tools:Tiny-v0, {_TASKS} tasks of the split test for each model, sampled at temperature 1; intervals of "
        "success are Wilson's, those of differences the paired bootstrap's over tasks (`rollenv bench compare`). An "
        f"untrained model makes {invalid:.1f} malformed or failed calls an episode. The seconds hold the warm-up where "
        "it was not cached, and all evaluations.\n\n"
    )
    clear = sum(change.low > 0 for change in gains)
    end = f"\nThe difference is clear in {clear} of {len(gains)} runs. {means(curves)}\n"
    save("tools_training", header() + "\n" + note + table(head, body) + end)


def untrained(given: argparse.Namespace, seed: int) -> Path:
    """The model that training with this seed begins with."""
    folder: Path = given.runs / f"untrained-{seed}"
    train("tools", folder, seed, ["iterations=0", *given.set])
    return folder


def bench(folder: Path) -> Benchmark:
    agent = LocalAgent.load(folder)
    return run(suite("tools:Tiny-v0"), agent, n=_TASKS, seed=_SEED, floors=False)


def shown(result: Benchmark) -> str:
    success, low, high = result.total.success
    return f"{success:.3f} ({low:.3f} to {high:.3f})"


def means(curves: dict[str, list[list[dict[str, float]]]]) -> str:
    ends = {name: mean(evaluations(rows)[-1]["eval/success"] for rows in runs) for name, runs in curves.items()}
    return "Mean of the last evaluations: " + ", ".join(f"{name} {value:.3f}" for name, value in ends.items()) + "."


if __name__ == "__main__":
    main()
