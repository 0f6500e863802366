"""The shell recipe with GRPO over several seeds: success before and after on tasks never trained on, by kind of task.

Runs that are already complete below ``--runs`` are not repeated, so the seeds can be trained one by one.
"""

from __future__ import annotations

from collections import defaultdict

from common import IMAGES, ROOT, header, save, table
from training_runs import Picture, draw, evaluations, options, seconds, train, train_all

from rollenv.agents.local import LocalAgent
from rollenv.rollout.evaluate import Evaluation, evaluate

#: Tasks for each model, and the seed of the first: neither training nor its evaluations play them.
_TASKS, _SEED = 300, 1_000_000
_ENV = "shell:Logs-v0-easy"
_KWARGS = {"calls": "plain", "max_turns": 1, "split": "test"}


def main() -> None:
    given = options(__doc__, ROOT / "runs" / "benchmark-shell", algorithms=["GRPO"])
    curves = train_all("shell", given)
    draw(curves, Picture(IMAGES / "shell_curve.svg", "success on unseen tasks", target=0.9, low=0.0))
    body, kinds = [], defaultdict(list)
    for name, runs in curves.items():
        for seed, rows in enumerate(runs):
            untrained = given.runs / f"untrained-{seed}"
            train("shell", untrained, seed, ["iterations=0", *given.set])
            results = [play(untrained), play(given.runs / f"{name}-{seed}")]
            last = evaluations(rows)[-1]["eval/success"]
            body.append((name, seed, *map(shown, results), f"{last:.3f}", f"{seconds(rows):.0f}"))
            for when, result in zip(("before", "after"), results, strict=True):
                for kind, share in by_kind(result).items():
                    kinds[kind, when].append(share)
    head = ("algorithm", "seed", "before RL (95 %)", "after RL (95 %)", "last evaluation in training", "seconds")
    note = (
        f"{_ENV}, one command for each task; {_TASKS} tasks of the split test for each model, sampled at temperature "
        "1, each on a machine of its own. Intervals are Wilson's. The seconds hold the warm-up where it was not "
        "cached, and all evaluations; most of them go to starting and ending machines.\n\n"
    )
    named = sorted({kind for kind, _ in kinds})
    share = {key: sum(found) / len(found) for key, found in kinds.items()}
    rows = [(kind, f"{share[kind, 'before']:.3f}", f"{share[kind, 'after']:.3f}") for kind in named]
    tables = (
        table(head, body)
        + "\nBy the task's first words, mean of the seeds:\n\n"
        + table(("task", "before", "after"), rows)
    )
    save("shell_training", header() + "\n" + note + tables)


def play(folder: object) -> Evaluation:
    return evaluate(LocalAgent.load(folder), _ENV, _KWARGS, n=_TASKS, seed=_SEED)


def by_kind(result: Evaluation) -> dict[str, float]:
    won = defaultdict(list)
    for trajectory in result.trajectories:
        won[" ".join(trajectory.turns[0].observation.split()[:4])].append(trajectory.success)
    return {kind: sum(found) / len(found) for kind, found in won.items()}


def shown(result: Evaluation) -> str:
    return f"{result.success:.3f} ({result.low:.3f} to {result.high:.3f})"


if __name__ == "__main__":
    main()
