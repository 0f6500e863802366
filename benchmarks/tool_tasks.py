"""Generated tasks with tools: who solves them, how fast they are made, and whether any comes twice.

For every id: the share of tasks that the oracle solves, the oracle with a share of its actions replaced by random ones,
random actions, and agents that always say the same. Duplicates are among tasks 0 to 999; the last column counts the
names that 2,000 tasks of the train split and 2,000 of the test split have in common.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

from common import header, save, table

import rollenv

SUITES = ("Shop", "Office", "Files", "SQL", "Sheet", "Search", "Tiny")
NOISE = (0.0, 0.1, 0.3, 0.5, 1.0)
CONSTANT = ("Done.", "I cannot do that.")
HEAD = (
    "id",
    *("oracle", *(f"noise {noise}" for noise in NOISE[1:-1]), "random"),
    *CONSTANT,
    "duplicates",
    "tasks/s",
    "shared",
)


def share(env: Any, seeds: int, act: Callable[[Any, random.Random], str]) -> float:
    """The share of the first seeds' tasks that are solved."""
    won = 0
    for seed in range(seeds):
        env.reset(seed)
        rng, over = random.Random(seed), False
        while not over:
            *_, terminated, truncated, info = env.step(act(env, rng))
            over = terminated or truncated
        won += info["success"]
    return won / seeds


def noisy(noise: float) -> Callable[[Any, random.Random], str]:
    return lambda env, rng: env.sample_random_action() if rng.random() < noise else env.oracle_action()


def names(env_id: str, split: str, count: int) -> set[str]:
    env: Any = rollenv.make(env_id, split=split)
    found = set()
    for seed in range(count):
        env.reset(seed)
        found.add(env.current.task_id())
    return found


def row(env_id: str, args: argparse.Namespace) -> list[object]:
    env: Any = rollenv.make(env_id)
    shares = [share(env, args.seeds, noisy(noise)) for noise in NOISE]
    shares += [share(env, args.seeds, lambda env, rng, text=text: text) for text in CONSTANT]  # type: ignore[misc]
    began = time.perf_counter()
    made = {env.problem(key).task_id() for key in range(args.tasks)}
    rate = args.tasks / (time.perf_counter() - began)
    base = env_id.endswith("-v0")  # the variants split their tasks in the same way
    shared: object = len(names(env_id, "train", args.names) & names(env_id, "test", args.names)) if base else ""
    return [env_id, *(f"{100 * each:.3g} %" for each in shares), args.tasks - len(made), round(rate), shared]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--names", type=int, default=2000)
    parser.add_argument("--small", action="store_true", help="20 seeds, 100 tasks, 100 names")
    parser.add_argument("--only", default="tools:", help="part of the ids")
    args = parser.parse_args()
    if args.small:
        args.seeds, args.tasks, args.names = 20, 100, 100
    ids = [spec.id for suite in SUITES for spec in rollenv.list_envs(f"tools:{suite}-v0") if args.only in spec.id]
    text = header() + "\n" + table(HEAD, [row(env_id, args) for env_id in ids])
    save("tool_tasks", text) if args.only == "tools:" else print(text)


if __name__ == "__main__":
    main()
