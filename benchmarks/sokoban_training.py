"""The Sokoban recipe with GRPO and GiGPO over several seeds: success on unseen levels before and after, and the curves.

Runs that are already complete below ``--runs`` are not repeated, so the seeds can be trained one by one.
"""

from __future__ import annotations

from common import ROOT, header, save, table
from training_runs import Picture, draw, evaluations, interval, options, seconds, train_all


def main() -> None:
    given = options(__doc__, ROOT / "runs" / "benchmark")
    curves = train_all("sokoban", given.runs, given.seeds, given.set)
    rows = []
    for name, runs in curves.items():
        for seed, run in enumerate(runs):
            before, *_, after = evaluations(run)
            rows.append((name, seed, interval(before), interval(after), f"{seconds(run):.0f}"))
    file = ROOT / "docs" / "images" / "sokoban_curve.svg"
    draw(curves, Picture(file, "success on 500 unseen levels", target=0.85, low=0.2))
    head = ("algorithm", "seed", "before RL (95 %)", "after RL (95 %)", "seconds")
    note = (
        "Success on 500 unseen levels, sampled at temperature 1. The seconds hold the warm-up of the tiny "
        "model, where it was not cached, and all evaluations.\n\n"
    )
    save("sokoban_training", header() + "\n" + note + table(head, sorted(rows)))


if __name__ == "__main__":
    main()
