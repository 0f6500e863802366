"""What a careless split is worth in points of success: test rooms that training has seen, turned or not, beside others.

The run is the Sokoban recipe without a split, so that test rooms differ from training by their seeds alone:

    rollenv train sokoban 'env.kwargs.split="all"' 'eval.kwargs.split="all"' eval.every=60 eval.episodes=4000 run_dir=RUN
    python benchmarks/leak_cost.py RUN

Rooms are compared at equal length of the shortest solution, as training asks for other lengths than the test.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from common import header, save, table

import rollenv
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny.demonstrations import Lesson
from rollenv.envs.game.sokoban.solver import solve
from rollenv.panels.identity import Identifier
from rollenv.rollout.types import Task
from rollenv.trainers.sources import task_seed


def trained_on(config: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return what the rooms of reinforcement learning are alike, and those of the demonstrations before it."""
    env_id, kwargs, seed = config["env"]["id"], config["env"]["kwargs"], config["seed"]
    tasks = [task_seed(seed, number) for number in range(config["iterations"] * config["rollout"]["groups_per_batch"])]
    shown: list[int] = []
    env = rollenv.make(env_id, **kwargs)
    reset = env.reset
    env.reset = lambda seed=None, **how: (shown.append(seed), reset(seed, **how))[1]  # type: ignore[method-assign,func-returns-value]
    warm_up = config["model"]["warm_up"]
    prompt = StepPrompt("{state}", chat=False)
    lesson = Lesson(rollenv.spec(env_id), kwargs, prompt, warm_up["wandering"], seed, warm_up["episodes"])
    for chunk in range(lesson.chunks):
        lesson.play(env, chunk)
    with Identifier() as identifier:
        learned, seen = (
            {identifier.identify(Task(env_id, each, kwargs)).alike for each in seeds} for seeds in (tasks, shown)
        )
    return learned, seen


def main() -> None:
    """Compare the last evaluation's rooms that training has seen with the others."""
    run = Path(sys.argv[1])
    config = json.loads((run / "config.json").read_text())
    learned, seen = trained_on(config)
    env = rollenv.make(config["env"]["id"], split="all")
    wins: dict[int, dict[bool, list[bool]]] = defaultdict(lambda: {True: [], False: []})
    with Identifier() as identifier, open(run / "episodes.jsonl") as file:
        for episode in map(json.loads, file):
            if episode["iteration"] != config["iterations"]:
                continue
            task = Task(episode["task"]["env_id"], episode["task"]["seed"], episode["task"]["kwargs"])
            env.reset(task.seed)
            room: Any = env.unwrapped
            length = len(solve(room.board, room.state, weights=(1,)) or ())
            leaked = identifier.identify(task).alike in learned | seen
            wins[length][leaked].append(bool(episode["success"]))
    rows, sums = [], [0.0, 0.0, 0.0]
    for length, each in sorted(wins.items()):
        a, b = each[True], each[False]
        if not a or not b:
            continue
        shares = sum(a) / len(a), sum(b) / len(b)
        weight = len(a) * len(b) / (len(a) + len(b))
        spread = sum(max(p * (1 - p), 0.01) / len(of) for p, of in zip(shares, (a, b), strict=True))
        sums = [sums[0] + weight * (shares[0] - shares[1]), sums[1] + weight**2 * spread, sums[2] + weight]
        rows.append([length, len(a), len(b), f"{100 * shares[0]:.1f}", f"{100 * shares[1]:.1f}"])
    gain, error = 100 * sums[0] / sums[2], 196 * math.sqrt(sums[1]) / sums[2]
    text = (
        f"Rooms that training has seen are solved {gain:.1f} ± {error:.1f} points more often than others with a shortest "
        f"solution as long (95 %, normal approximation; {sum(len(e[True]) for e in wins.values())} of "
        f"{sum(len(e[True]) + len(e[False]) for e in wins.values())} test rooms have been seen).\n\n"
    )
    head = ["moves of the shortest solution", "seen", "not seen", "solved, % of seen", "solved, % of not seen"]
    save("leak_cost", f"{text}{header()}\n{table(head, rows)}")


if __name__ == "__main__":
    main()
