"""Sokoban trained with vLLM as the player, beside the local engine: the same settings, seeds and samples.

Run it with an interpreter that has vLLM, and the link tree that `make lint` makes on its path:

    VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind PYTHONPATH=.lint \
        .bench/vllm/bin/python benchmarks/vllm_training.py

Runs that are already complete below ``--runs`` are not repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, median, stdev

from asynchronous import SETTINGS, area, playing_time
from common import ROOT, header, save, table
from training_runs import Rows, evaluations, train

PLAYERS = {
    "local engine": (),
    "vLLM, in process": ("player.kind=vllm", "player.options={dtype='float32',enforce_eager=true,max_model_len=256}"),
}
#: Heads as wide as vLLM's kernels on CPUs want them, and steps large enough for 30 batches.
OURS = (
    "iterations=30",
    "checkpoint_every=30",
    "eval.every=5",
    "model.size.heads=2",
    "optimizer.lr=1e-3",
    "optimizer.minibatch_sequences=128",
    "optimizer.old_logprobs=recomputed",  # so that it is measured how far sampler and trainer are apart
    "eval.episodes=400",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "benchmark-vllm-training")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--set", nargs="*", default=[], help="more key=value settings")
    given = parser.parse_args()
    runs: dict[str, list[Rows]] = {name: [] for name in PLAYERS}
    for seed in range(given.seeds):
        for name, settings in PLAYERS.items():
            folder = given.runs / f"{name.split()[0].strip(',').lower()}-{seed}"
            runs[name].append(train("sokoban", folder, seed, [*SETTINGS, *OURS, *settings, *given.set]))
    save("vllm_training", header() + "\n" + report(runs, given.seeds))


def report(runs: dict[str, list[Rows]], seeds: int) -> str:
    """Success at the ends and on the way, and how far sampler and trainer are apart."""
    ends = []
    for name, of_seeds in runs.items():
        last = [evaluations(rows)[-1]["eval/success"] for rows in of_seeds]
        kl, worst = (largest(of_seeds, key) for key in ("mismatch_kl", "logprob_drift_max"))
        ends.append(
            (
                name,
                f"{mean(evaluations(rows)[0]['eval/success'] for rows in of_seeds):.3f}",
                f"{mean(last):.3f} ({min(last):.3f} to {max(last):.3f})",
                f"{mean(area(rows) for rows in of_seeds):.3f} ± {spread([area(rows) for rows in of_seeds]):.3f}",
                f"{kl:.1e}",
                f"{worst:.1e}",
                f"{median(playing_time(rows)[-1] for rows in of_seeds):.0f}",
            )
        )
    head = ("player", "before", "after (seeds)", "on the way", "mismatch KL", "log-probability", "seconds")
    note = (
        f"Success on unseen levels over {seeds} seeds, at temperature 1. On the way: the mean over all evaluations but "
        "the first, with the standard deviation over seeds. Mismatch KL and log-probability: how far those that "
        "the player drew with are from those that the trainer computes for the same weights, the largest KL of an "
        "iteration and the largest difference of a token. Seconds without evaluations.\n\n"
    )
    return note + table(head, ends) + "\nMean success after so many batches:\n\n" + curves(runs)


def largest(runs: list[Rows], key: str) -> float:
    return max((row[key] for rows in runs for row in rows if key in row), default=0.0)


def spread(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def curves(runs: dict[str, list[Rows]]) -> str:
    first = next(iter(runs.values()))[0]
    places = [row["iteration"] for row in evaluations(first)]
    rows = [
        (name, *(f"{mean(at):.3f}" for at in zip(*(successes(run) for run in of_seeds), strict=True)))
        for name, of_seeds in runs.items()
    ]
    return table(("player", *map(str, places)), rows)


def successes(run: Rows) -> list[float]:
    return [row["eval/success"] for row in evaluations(run)]


if __name__ == "__main__":
    main()
