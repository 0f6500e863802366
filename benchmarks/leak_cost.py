"""The worth of a careless split in points of success: test rooms that training may have seen beside others.

The run is the Sokoban recipe, tested on rooms of both of its splits:

    rollenv train sokoban 'eval.kwargs.split="all"' eval.every=60 eval.episodes=6000 run_dir=RUN
    python benchmarks/leak_cost.py RUN

A hash of the room decides its split, so that rooms of both are equally common and equally hard, but those of ``test``
were never trained on. They are compared at equal length of the shortest solution.
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
from rollenv.envs.game.grid import same_if_turned
from rollenv.envs.game.sokoban.board import WALL, BoardState
from rollenv.envs.game.sokoban.levels import TEST_SHARE
from rollenv.envs.game.sokoban.solver import solve
from rollenv.envs.splits import in_split
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
    """Compare the rooms of both splits in the last evaluation."""
    run = Path(sys.argv[1])
    config = json.loads((run / "config.json").read_text())
    learned, shown = trained_on(config)
    env = rollenv.make(config["env"]["id"], split="all")
    wins: dict[int, dict[bool, list[bool]]] = defaultdict(lambda: {True: [], False: []})
    seen = {True: 0, False: 0}
    with Identifier() as identifier, open(run / "episodes.jsonl") as file:
        for episode in map(json.loads, file):
            if episode["iteration"] != config["iterations"]:
                continue
            task = Task(episode["task"]["env_id"], episode["task"]["seed"], episode["task"]["kwargs"])
            env.reset(task.seed)
            room: Any = env.unwrapped
            rows = room.board.rows(BoardState(0, 0))
            rows[0][0] = WALL
            trains = in_split(same_if_turned(rows), "train", TEST_SHARE)
            length = len(solve(room.board, room.state, weights=(1,)) or ())
            wins[length][trains].append(bool(episode["success"]))
            seen[trains] += identifier.identify(task).alike in learned | shown
    cells, sums = [], [0.0, 0.0, 0.0]
    for length, each in sorted(wins.items()):
        a, b = each[True], each[False]
        if not a or not b:
            continue
        shares = sum(a) / len(a), sum(b) / len(b)
        weight = len(a) * len(b) / (len(a) + len(b))
        spread = sum(max(p * (1 - p), 0.01) / len(of) for p, of in zip(shares, (a, b), strict=True))
        sums = [sums[0] + weight * (shares[0] - shares[1]), sums[1] + weight**2 * spread, sums[2] + weight]
        cells.append([length, len(a), len(b), f"{100 * shares[0]:.1f}", f"{100 * shares[1]:.1f}"])
    gain, error = 100 * sums[0] / sums[2], 196 * math.sqrt(sums[1]) / sums[2]
    numbers = {split: sum(len(each[split]) for each in wins.values()) for split in (True, False)}
    text = (
        f"Rooms of the split that is trained on are solved {gain:.1f} ± {error:.1f} points more often than rooms of "
        f"the other with a shortest solution as long (95 %, normal approximation). Of {numbers[True]} of the one "
        f"{seen[True]} had been trained on, of {numbers[False]} of the other {seen[False]}.\n\n"
    )
    head = ["moves of the shortest solution", "of train", "of test", "solved, % of train", "solved, % of test"]
    save("leak_cost", f"{text}{header()}\n{table(head, cells)}")


if __name__ == "__main__":
    main()
