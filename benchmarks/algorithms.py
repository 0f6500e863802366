"""Algorithms on one task: success and turns over several seeds, at the same budget, and what differs from GRPO.

Every algorithm of a seed begins with the same weights and plays the same starts as often. Runs that are already
complete below ``--runs`` are not repeated. On the maze, GRPO and GiGPO are also compared while one thing is changed at
a time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import IMAGES, ROOT, header, save, table
from maze import Maze
from training_runs import Picture, Rows, draw, evaluations, seconds, train

from rollenv.panels.shelf import load_panel
from rollenv.rollout.evaluate import wilson_interval
from rollenv.trainers.config import TrainConfig, load_config

_CRITIC = ["algorithm.name=ppo", "algorithm.critic.lr=1e-3", "algorithm.critic.warm_up=3"]
ALGORITHMS = {
    "GRPO": ["algorithm.name=grpo"],
    "Dr. GRPO": ["algorithm.name=grpo", "algorithm.normalize_std=false"],
    "GiGPO": ["algorithm.name=gigpo", "algorithm.normalize_std=false"],
    "HGPO": ["algorithm.name=hgpo", "algorithm.normalize_std=false"],
    "MT-GRPO": ["algorithm.name=mt_grpo"],
    "PPO, token": [*_CRITIC, "algorithm.credit=token"],
    "PPO, turn": [*_CRITIC, "algorithm.credit=turn"],
}


@dataclass(frozen=True)
class Task:
    """A training task; its recipe is ``algorithms_NAME.toml``."""

    name: str
    success: str
    """Label of its curve."""
    first_seed: int = 0
    """First seed; earlier ones were used for tuning the recipe."""

    @property
    def recipe(self) -> str:
        return str(Path(__file__).with_name(f"algorithms_{self.name}.toml"))


TASKS = {
    task.name: task
    for task in (
        Task("maze", "success in the maze", 4),
        Task("maze_near", "success in the maze", 4),
        Task("sokoban", "success on rooms never trained on"),
        Task("frozen_lake", "success on maps never trained on", 1),
        Task("textcraft", "success on items never trained on", 1),
        Task("alfworld", "success on unseen goals and places", 1),
        Task("shop", "success on goals never trained on", 1),
    )
}

#: Algorithms that the ablations compare and that can have more seeds.
PAIR = ("GRPO", "GiGPO")

#: Ablations on the maze: one change at a time.
ABLATIONS = {
    "as above": [],
    "8 groups of 8": ["rollout.groups_per_batch=8", "rollout.group_size=8"],
    "states named with the last 2 cells": ["env.kwargs.memory=2"],
    "states named with the whole way": ["env.kwargs.memory=40"],
    "at the limit, the share of the way is paid": ["env.kwargs.near=1.0"],
}

#: Quantiles of Student's t for 95 % intervals, by the number of seeds.
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "algorithms")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pair", type=int, default=0, help="seeds of GRPO and GiGPO, if more than the others'")
    parser.add_argument("--algorithms", nargs="*", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--ablations", type=int, default=0, help="seeds of the ablations on the maze, run alone")
    parser.add_argument("--set", nargs="*", default=[], help="more key=value settings")
    return parser.parse_args()


def over_seeds(values: Sequence[float], digits: int = 3, sign: str = "") -> str:
    """The mean with its 95 % interval over seeds (Student's t)."""
    middle = statistics.mean(values)
    if len(values) not in _T:
        return f"{middle:{sign}.{digits}f}"
    return f"{middle:{sign}.{digits}f} ± {half_width(values):.{digits}f}"


def half_width(values: Sequence[float]) -> float:
    """Return the half width of the 95 % interval of a mean."""
    return float(_T[len(values)] * statistics.stdev(values) / len(values) ** 0.5)


def pooled(runs: Sequence[Rows], episodes: int) -> str:
    """Success over the last evaluations of all seeds together, with its 95 % interval (Wilson's)."""
    wins = sum(round(last(run) * episodes) for run in runs)
    low, high = wilson_interval(wins, episodes * len(runs))
    return f"{wins / episodes / len(runs):.3f} ({low:.3f} to {high:.3f})"


def last(run: Rows) -> float:
    return float(evaluations(run)[-1]["eval/success"])


def way(run: Rows) -> float:
    """The mean over the curve without its beginning: how soon it rose, and how far."""
    return statistics.mean(e["eval/success"] for e in evaluations(run)[1:])


def row(name: str, runs: Sequence[Rows], grpo: Sequence[Rows], episodes: int) -> tuple[str, ...]:
    told = [statistics.mean(r["informative_groups"] for r in run if "informative_groups" in r) for run in runs]
    return (
        name,
        " ".join(f"{last(run):.3f}" for run in runs),
        over_seeds([last(run) for run in runs]),
        pooled(runs, episodes),
        over_seeds([way(run) for run in runs]),
        over_seeds([evaluations(run)[-1]["eval/turns"] for run in runs], 1),
        f"{statistics.mean(told):.2f}",
        over_seeds([seconds(run, "collect", "cpu") + seconds(run, "update", "cpu") for run in runs], 0),
        *(less(runs, grpo, of) for of in (last, way)),
    )


def less(runs: Sequence[Rows], grpo: Sequence[Rows], of: Callable[[Rows], float]) -> str:
    """Format the difference to GRPO with the same seed; * marks intervals without zero."""
    pairs = [of(run) - of(other) for run, other in zip(runs, grpo, strict=False)]
    if runs is grpo or len(pairs) not in _T:
        return ""
    shown = abs(statistics.mean(pairs)) > half_width(pairs)
    return over_seeds(pairs, sign="+") + " *" * shown


def repeated(kwargs: dict[str, float], members: int, groups: int = 50) -> tuple[float, float]:
    """Return the share of turns of random walks whose state another group member visited, and the success rate."""
    rng, met, turns, wins = random.Random(0), 0, 0, 0
    for group in range(groups):
        walks = []
        for _ in range(members):
            env = Maze(**kwargs)  # type: ignore[arg-type]
            env.reset(group)
            states, over = [], False
            while not over:
                states.append(env.state_key())
                _, _, ended, cut, _ = env.step(rng.choice(env.directions))
                over = ended or cut
            wins += ended
            walks.append(states)
        by = Counter(state for walk in walks for state in set(walk))
        met += sum(by[state] > 1 for walk in walks for state in walk)
        turns += sum(map(len, walks))
    return met / turns, wins / groups / members


def anchors(recipe: str) -> str:
    kwargs = load_config(recipe).env.kwargs
    rows = []
    for members in (2, 4, 8, 16):
        share, success = repeated(kwargs, members)
        rows.append((members, f"{share:.2f}", f"{success:.2f}"))
    return table(("members of a group", "turns in a state that another member met", "success of the walk"), rows)


def ablations(given: argparse.Namespace, task: Task) -> str:
    """GRPO and GiGPO on the maze with one thing changed at a time."""
    rows = []
    for name, settings in ABLATIONS.items():
        runs = {one: runs_of(given, task, one, given.ablations, settings, name) for one in PAIR}
        config = load_config(task.recipe, settings)
        share, _ = repeated(config.env.kwargs, config.rollout.group_size)
        ends = [over_seeds([last(run) for run in runs[one]]) for one in runs]
        told = statistics.mean(r["informative_groups"] for run in runs["GRPO"] for r in run if "loss" in r)
        differences = [less(runs["GiGPO"], runs["GRPO"], of) for of in (last, way)]
        rows.append((name, f"{share:.2f}", f"{told:.2f}", *ends, *differences))
    head = ("changed", "turns in a state met before", "informative", "GRPO", "GiGPO", "difference", "over the curve")
    return f"## One thing changed at a time, {given.ablations} seeds\n\n" + table(head, rows)


def runs_of(
    given: argparse.Namespace, task: Task, name: str, seeds: int, settings: Sequence[str] = (), label: str = ""
) -> list[Rows]:
    """The runs of an algorithm, one for each seed; they are trained if need be."""
    runs = []
    for seed in range(task.first_seed, task.first_seed + seeds):
        parts = (task.name, name.replace(", ", "-"), *([label.replace(" ", "_")] if settings else []), str(seed))
        folder = given.runs / "-".join(parts)
        runs.append(train(task.recipe, folder, seed, [*ALGORITHMS[name], *settings, *given.set]))
    return runs


def main() -> None:
    given = options()
    task = TASKS[given.task]
    given.runs.mkdir(parents=True, exist_ok=True)
    if given.ablations:
        save("algorithms_ablations", "\n".join([header(), about(given, task), ablations(given, task)]))
        return
    counts = {name: max(given.seeds, given.pair * (name in PAIR)) for name in given.algorithms}
    for seeds in range(1, max(counts.values())):  # all algorithms of a seed before the next one
        for name in given.algorithms:
            runs_of(given, task, name, min(seeds, counts[name]))
    curves = {name: runs_of(given, task, name, counts[name]) for name in given.algorithms}
    end = "algorithms" if task.name == "maze" else f"algorithms_{task.name}"
    draw(curves, Picture(IMAGES / f"{end}_curve.svg", task.success, target=1.0, low=0.0))
    parts = [header(), about(given, task), results(given, task, curves)]
    if task.name == "maze":
        parts.append(anchors(task.recipe))
    save(end, "\n".join(parts))


def results(given: argparse.Namespace, task: Task, curves: Mapping[str, Sequence[Rows]]) -> str:
    head = (
        *("algorithm", "seeds", "success (t)", "all seeds (Wilson)", "mean over the curve", "turns", "informative"),
        *("processor s", "less GRPO's", "over the curve"),
    )
    episodes = episodes_of(load_config(task.recipe, given.set))
    grpo = curves.get("GRPO", ())
    return table(head, [row(name, runs, grpo, episodes) for name, runs in curves.items()])


def episodes_of(config: TrainConfig) -> int:
    """The episodes of an evaluation."""
    if not config.eval.panel:
        return config.eval.episodes
    panel = load_panel(config.eval.panel)
    return len(panel.members) * panel.protocol.k


def about(given: argparse.Namespace, task: Task) -> str:
    config = load_config(task.recipe, given.set)
    rollout = config.rollout
    return (
        f"`benchmarks/{Path(task.recipe).name}`: {config.env.id} {json.dumps(config.env.kwargs)}, {config.iterations} "
        f"iterations of {rollout.groups_per_batch} groups of {rollout.group_size}, {episodes_of(config)} episodes an "
        "evaluation, sampled at temperature 1. Intervals (95 %) are over seeds with Student's t, and over the episodes "
        "of all seeds with Wilson's, which knows nothing of what differs between seeds. Informative is the share of "
        "groups whose rewards differ; processor s are those of playing and updates. The last two columns are what is "
        "left of the success at the end, and of its mean "
        "over the curve, after taking away GRPO's for the same seed; a star marks an interval without zero.\n"
    )


if __name__ == "__main__":
    main()
