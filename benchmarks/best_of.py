"""Over-optimisation of a reward model: its score and the true reward of the best of n stored episodes (Gao et al.).

``python benchmarks/best_of.py MODEL EPISODES [--beside RUN]``: of every task of EPISODES (``rollenv eval -k N --out``),
the best of 1, 2, 4, ... episodes by MODEL, against the root of KL, √(ln n - (n - 1)/n) (arXiv 2210.10760). RUN is a
training on the model's rewards with a KL, whose evaluations are drawn on the same axis. The plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from common import IMAGES, table

from rollenv import UsageError
from rollenv.report import open_run
from rollenv.rollout.records.stored import stored_episodes
from rollenv.rollout.types import Trajectory
from rollenv.trainers.reward_model import RewardModel

Row = dict[str, float]


def best_of(episodes: Sequence[tuple[float, float]], n: int) -> tuple[float, float]:
    """Return the expected proxy and true reward of the best of n episodes by the proxy, over all choices of n.

    The episode at rank r of m (the best is 1) is the best of C(m - r, n - 1) of the C(m, n) choices.
    """
    ranked, m = sorted(episodes, reverse=True), len(episodes)
    weights = [math.comb(m - rank, n - 1) / math.comb(m, n) for rank in range(1, m + 1)]
    proxy, true = (sum(w * pair[i] for w, pair in zip(weights, ranked, strict=True)) for i in (0, 1))
    return proxy, true


def rows_of(model: RewardModel, played: Sequence[Trajectory]) -> list[Row]:
    """Return the mean rewards of the best of 1, 2, 4, ... episodes of a task."""
    tasks: dict[str, list[tuple[float, float]]] = {}
    for trajectory, proxy in zip(played, model.rewards(played), strict=True):
        tasks.setdefault(repr(trajectory.task), []).append((proxy, trajectory.own_reward))
    least = min(map(len, tasks.values()), default=0)
    if least < 2:
        raise UsageError("it takes at least two episodes of every task: play them with `rollenv eval -k N --out`")
    rows = []
    for n in [2**power for power in range(int(math.log2(least)) + 1)]:
        chosen = [best_of(each, n) for each in tasks.values()]
        proxy, true = (sum(pair[i] for pair in chosen) / len(chosen) for i in (0, 1))
        rows.append({"n": n, "root_kl": math.sqrt(math.log(n) - (n - 1) / n), "proxy": proxy, "true": true})
    return rows


def evaluations_of(path: Path) -> list[Row]:
    """Return the evaluations of a run that learns from a reward model, with the root of its KL per episode."""
    run = open_run(path)
    size = run.settings.get("rollout", {})
    episodes = size.get("groups_per_batch", 1) * size.get("group_size", 1)
    found = []
    for row in run.metrics:
        if "eval/trained_reward" in row and ("reference_kl" in row or not row["iteration"]):
            away = max(row.get("reference_kl", 0.0), 0.0) * row.get("response_tokens", 0.0) / episodes
            numbers = {"iteration": row["iteration"], "root_kl": math.sqrt(away)}
            found.append(numbers | {"proxy": row["eval/trained_reward"], "true": row["eval/reward"]})
    if len(found) < 2:
        raise UsageError(
            f"{path} has no evaluations with the rewards of a model and a KL: train with rewards.domains of kind "
            "learned, and kl.name=loss or reward"
        )
    return found


def draw(curves: dict[str, list[Row]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4))
    for colour, (name, rows) in enumerate(curves.items()):
        for key, label, line in (("true", "true reward", "-"), ("proxy", "by the model", "--")):
            points = [row["root_kl"] for row in rows], [row[key] for row in rows]
            axes.plot(*points, f"C{colour}o{line}", markersize=3, label=f"{name}: {label}")
    axes.set_xlabel("root of KL to the start, nats per episode")
    axes.set_ylabel("reward")
    axes.legend()
    figure.savefig(file, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a reward model: a checkpoint, or a run of `rollenv reward-model`")
    parser.add_argument("episodes", type=Path)
    parser.add_argument("--beside", type=Path, metavar="RUN")
    given = parser.parse_args()
    curves = {"best of n": rows_of(RewardModel.load(given.model), [*stored_episodes(given.episodes, "complete")])}
    if given.beside:
        curves["RL"] = evaluations_of(given.beside)
    for rows in curves.values():
        print(table([*rows[0]], [[*row.values()] for row in rows]))
    draw(curves, IMAGES / "best_of.svg")
    print(f"written to {IMAGES / 'best_of.svg'}")


if __name__ == "__main__":
    main()
