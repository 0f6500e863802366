"""The WebShop recipe with GRPO and GiGPO over several seeds: success on goals never trained on, and the curves.

Runs that are already complete below ``--runs`` are not repeated, so the seeds can be trained one by one.
"""

from __future__ import annotations

import argparse
from statistics import mean, stdev

from common import IMAGES, ROOT, header, save, table
from training_runs import Picture, Rows, draw, evaluations, interval, options, seconds, train_all

from rollenv.agents.local import LocalAgent
from rollenv.rollout.evaluate import Evaluation, evaluate

#: Success on WebShop in the GiGPO paper (arXiv 2505.10978, table 1): Qwen2.5-1.5B-Instruct, mean of three seeds.
PAPER = {"GRPO": 0.568, "GiGPO": 0.674}


def main() -> None:
    given = options(__doc__, ROOT / "runs" / "benchmark-webshop")
    curves = train_all("webshop", given)
    file = IMAGES / "webshop_curve.svg"
    draw(curves, Picture(file, "success on 26 goals never trained on", target=0.75, low=0.0))
    head = ("algorithm", "seed", "before RL (95 %)", "after RL (95 %)", "mean score", "eval split (95 %)", "seconds")
    body = [row(given, name, seed, run) for name, runs in curves.items() for seed, run in enumerate(runs)]
    note = (
        "300 episodes over the 26 goals of the test split, none of which training asks for; sampled at temperature 1. "
        "The intervals are Wilson's and count episodes, not goals. The mean score is WebShop's reward, 0 to 1, before "
        "and after.\n\n"
        "GRPO divides advantages by the group's standard deviation, GiGPO does not, as in the paper's best rows. "
        "The recipe's settings were chosen by looking at the test split with seed 0. Nothing was chosen by the "
        "eval split, whose goals are disjoint from both: its column is 300 episodes of the last model there.\n\n"
        "Each run computes with one thread. The seconds are wall-clock time, whatever else the machine did; they hold "
        "all evaluations, and the warm-up of the tiny model where it was not cached.\n\n"
    )
    save("webshop_training", header() + "\n" + note + table(head, body) + "\n" + comparison(curves))


def row(given: argparse.Namespace, name: str, seed: int, run: Rows) -> tuple[str, int, str, str, str, str, str]:
    before, *_, after = evaluations(run)
    scores = f"{before['eval/reward']:.3f} to {after['eval/reward']:.3f}"
    fresh = on_eval_split(given, name, seed)
    fresh_interval = f"{fresh.success:.3f} ({fresh.low:.3f} to {fresh.high:.3f})"
    return name, seed, interval(before), interval(after), scores, fresh_interval, f"{seconds(run):.0f}"


def on_eval_split(given: argparse.Namespace, name: str, seed: int) -> Evaluation:
    """The run's last model on goals that neither training nor the recipe's settings ever followed."""
    agent = LocalAgent.load(given.runs / f"{name}-{seed}")
    return evaluate(agent, "webshop:mini-easy", {"split": "eval"}, n=300, seed=2_000_000_000)


def comparison(curves: dict[str, list[Rows]]) -> str:
    """Compare the algorithms, beside the paper's ordering."""
    ends = {name: [evaluations(run)[-1]["eval/success"] for run in runs] for name, runs in curves.items()}
    ways = {name: [area(run) for run in runs] for name, runs in curves.items()}
    head = ("algorithm", "after RL, mean of seeds", "standard deviation", "mean over the curve", "paper, 1.5B")
    body = [
        (name, f"{mean(ends[name]):.3f}", spread(ends[name]), f"{mean(ways[name]):.3f}", f"{PAPER[name]:.3f}")
        for name in curves
    ]
    return table(head, body) + "\n" + verdict(ends["GRPO"], ends["GiGPO"]) + "\n"


def verdict(grpo: list[float], gigpo: list[float]) -> str:
    """The ordering in a sentence; it counts as found if the ranges of the seeds do not overlap."""
    paper = f"The paper has GiGPO above GRPO on WebShop ({PAPER['GiGPO']:.1%} against {PAPER['GRPO']:.1%})."
    gap = mean(gigpo) - mean(grpo)
    if min(gigpo) > max(grpo):
        return f"{paper} Here too: by {gap:.3f} in the mean, and every seed of it above every seed of GRPO."
    if max(gigpo) < min(grpo):
        return f"{paper} Here it is the other way round, by {-gap:.3f} in the mean and for every seed."
    where = "ahead" if gap > 0 else "behind"
    return (
        f"{paper} That ordering is not found here: GiGPO is {where} by {abs(gap):.3f} in the mean, and the seeds of "
        "the two overlap, so neither is shown to be better."
    )


def area(run: Rows) -> float:
    """The mean success over all evaluations after the first: how soon it rose, and how far."""
    return mean(row["eval/success"] for row in evaluations(run)[1:])


def spread(values: list[float]) -> str:
    return f"{stdev(values):.3f}" if len(values) > 1 else "-"


if __name__ == "__main__":
    main()
