"""The cost of collecting a batch of the Sokoban recipe, in one process and in several.

Every way plays the same tasks with the same weights; the ways take turns. The tokens must be equal.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from common import header, save, table

from rollenv.agents.engines.local import LocalEngine
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.types import Group
from rollenv.rollout.workers.base import HostedEnv
from rollenv.trainers.config import load_config
from rollenv.trainers.rollout_processes import RolloutProcesses
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer

#: Timed parts of a batch: label, class and method.
PARTS = (("levels", HostedEnv, "reset"), ("steps", HostedEnv, "step"), ("model", LocalEngine, "_next_logits"))


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--warm-up", type=int, default=1000, help="steps before; the recipe's number is kept in a cache"
    )
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


@contextmanager
def trainer_of(options: argparse.Namespace) -> Iterator[Trainer]:
    """The recipe before its first update, with one thread."""
    settings = [f"rollout.groups_per_batch={options.groups}", f"model.warm_up.steps={options.warm_up}"]
    config = load_config("sokoban", ["threads=1", "rollout.processes=1", *settings])
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir.create(config.model_copy(update={"run_dir": str(Path(folder, "run"))}), "sokoban")
        with Trainer(config, run) as trainer:
            gc.collect()
            gc.freeze()
            gc.set_threshold(100_000, 20, 20)  # as `rollenv train` does
            yield trainer


class Collecting:
    """Plays one batch again and again, as the first of a run."""

    def __init__(self, trainer: Trainer, processes: int):
        self.trainer, self.source = trainer, trainer.state.source.state_dict()
        self.processes = RolloutProcesses(trainer.state.player, processes, EpisodeLimits())
        self.ways = {"one process": False, f"{processes} processes": True}

    def __call__(self, way: str) -> tuple[list[Group], float, float]:
        """The groups, and seconds on the clock and of processors."""
        manager, parts = self.trainer.manager, self.trainer.state
        manager.processes = self.processes if self.ways[way] else None
        parts.source.load_state_dict(self.source)
        parts.player.weights_changed()
        parts.player.version = 0
        gc.collect()
        clock, worked = time.perf_counter(), time.process_time() + self.processes.seconds
        groups = self.trainer._collect({})
        return groups, time.perf_counter() - clock, time.process_time() + self.processes.seconds - worked


def said(groups: Sequence[Group]) -> list[list[tuple[int, ...]]]:
    """The tokens of every turn."""
    return [[turn.response_ids for turn in t.turns] for group in groups for t in group]


@contextmanager
def timed_parts(seconds: dict[str, float]) -> Iterator[None]:
    """While inside, add up the processor's seconds in :data:`PARTS`."""

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            try:
                return method(*args, **kwargs)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.process_time() - began

        return call

    plain = [(owner, method, getattr(owner, method)) for _, owner, method in PARTS]
    for name, owner, method in PARTS:
        setattr(owner, method, timed(name, getattr(owner, method)))
    try:
        yield
    finally:
        for owner, method, own in plain:
            setattr(owner, method, own)


def shares(collecting: Collecting, turns: int, rounds: int) -> list[float]:
    """Processor time of the parts of a batch in one process: medians, in microseconds a turn."""
    taken = []
    for _ in range(rounds):
        seconds: dict[str, float] = {}
        with timed_parts(seconds):
            worked = collecting("one process")[2]
        taken.append([*(seconds.get(name, 0.0) for name, *_ in PARTS), worked - sum(seconds.values())])
    return [1e6 * statistics.median(part) / turns for part in zip(*taken, strict=True)]


def main() -> None:
    options = options_of()
    torch.set_num_threads(1)
    with trainer_of(options) as trainer:
        collecting = Collecting(trainer, options.processes)
        taken: dict[str, list[tuple[float, float]]] = {way: [] for way in collecting.ways}
        expected = said(collecting("one process")[0])
        turns = sum(map(len, expected))
        for _ in range(options.rounds):
            for way, times in taken.items():
                groups, *seconds = collecting(way)
                assert said(groups) == expected, f"{way}: other tokens"
                times.append((seconds[0], seconds[1]))
                del groups
        parts = shares(collecting, turns, max(1, options.rounds // 2))
        collecting.processes.close()
    wall, work = ({way: statistics.median(s[i] for s in times) for way, times in taken.items()} for i in (0, 1))
    rows = [
        [
            way,
            turns / wall[way],
            1e6 * wall[way] / turns,
            wall["one process"] / wall[way],
            1e6 * work[way] / turns,
            work["one process"] / work[way],
        ]
        for way in taken
    ]
    head = ["", "turns/s", "µs/turn", "times faster", "processor, µs/turn", "times less"]
    notes = (
        f"{options.groups} groups of {trainer.config.rollout.group_size}, {turns} turns; medians of {options.rounds} "
        "rounds in which the ways take turns; torch with one thread in every process. All ways drew the same tokens.\n"
    )
    about = "\nProcessor time in µs a turn, in one process (levels: making and resetting them; model: its forward)\n\n"
    split = table([*(name for name, *_ in PARTS), "the rest"], [parts])
    save("collecting", f"# Collecting\n\n{header()}\n{table(head, rows)}\n{notes}{about}{split}")


if __name__ == "__main__":
    main()
