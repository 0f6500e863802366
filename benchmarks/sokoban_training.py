"""The Sokoban recipe over several seeds: success on unseen levels before and after, what each stage took, the curves.

Runs that are already complete below ``--runs`` are not repeated, so the seeds can be trained one by one.
"""

from __future__ import annotations

from common import IMAGES, ROOT, header, save, table
from training_runs import ALGORITHMS, STAGES, Picture, cost, draw, evaluations, interval, options, train_all


def main() -> None:
    given = options(__doc__, ROOT / "runs" / "benchmark", tuple(ALGORITHMS))
    curves = train_all("sokoban", given)
    rows = []
    for name, runs in curves.items():
        for seed, run in enumerate(runs):
            before, *_, after = evaluations(run)
            stages = [cost(run, stage) for stage in STAGES.values()]
            rows.append((name, seed, interval(before), interval(after), *stages, cost(run)))
    file = IMAGES / "sokoban_curve.svg"
    draw(curves, Picture(file, "success on unseen levels", 0.9, 0.3, ("processor seconds of RL", "episodes")))
    head = ("algorithm", "seed", "before RL (95 %)", "after RL (95 %)", *STAGES, "all")
    note = (
        "Success on levels that training never sees, sampled at temperature 1 before and after. Seconds on the clock "
        "(and of processor time); warm-up is that of the tiny model, 0 where it was cached. Loading Python's modules, "
        "about five seconds, comes on top.\n\n"
    )
    save("sokoban_training", header() + "\n" + note + table(head, sorted(rows)))


if __name__ == "__main__":
    main()
