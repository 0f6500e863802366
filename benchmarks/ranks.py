"""An update on two ranks (FSDP2, gloo) beside the same update in one process, on the cores of one machine.

The batch is played once and shared. All are measured in turn, so that other work on the machine meets them alike.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import header, save, table

from rollenv.agents.engines.local import load_weights
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Group
from rollenv.trainers import sharded_state
from rollenv.trainers.config import TrainConfig, load_config
from rollenv.trainers.ranks import ALONE, Ranks
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.training_state import TrainingState, begin, restore
from rollenv.trainers.updater import Updater
from rollenv.trainers.worker_rank import run_worker_rank

SIZES = {"small": [(64, 2)], "full": [(128, 4), (512, 6)]}


def settings(hidden: int, layers: int, groups: int) -> TrainConfig:
    return load_config(
        "sokoban",
        [
            f"model.size.hidden={hidden}",
            f"model.size.layers={layers}",
            f"model.size.intermediate={2 * hidden}",
            "model.warm_up.steps=5",
            "model.warm_up.episodes=50",
            f"rollout.groups_per_batch={groups}",
            "model.sync=copy",
            "loss.entropy=0.001",  # so that groups of equal rewards are trained on too
            "optimizer.minibatch_sequences=256",
        ],
    )


def built(config: TrainConfig, ranks: Ranks) -> tuple[TrainingState, Updater]:
    run = RunDir(Path("nowhere"))
    parts = restore(config, run, {}, lambda *_: None, ranks) or begin(config, {}, lambda *_: None, ranks)
    return parts, Updater(config, parts, run)


def update(learner: Updater, groups: list[Group]) -> float:
    began = time.perf_counter()
    learner.update(learner.compute_advantages(groups, {}))
    return time.perf_counter() - began


def rank(number: int, folder: str, config: TrainConfig, groups: list[Group], asked: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=number, world_size=2, init_method=f"file://{folder}/meet")
    ranks = Ranks.joined(torch.device("cpu"))
    if number:
        run_worker_rank(config, RunDir(Path("nowhere")), ranks)
        return
    parts, learner = built(config, ranks)
    answers.put(0.0)
    while (what := asked.get()) != "end":
        began = time.perf_counter()
        if what == "update":
            update(learner, groups)
        elif what == "publish":
            load_weights(parts.base_agent.model, parts.policy.named_weights())
        else:
            sharded_state.write(Path(what), parts.states, ranks)
        answers.put(time.perf_counter() - began)
    ranks.send_command("end")


def measure(hidden: int, layers: int, groups: int, rounds: int) -> list[Any]:
    config = settings(hidden, layers, groups)
    torch.set_num_threads(1)
    parts, learner = built(config, ALONE)
    with RolloutManager(parts.player) as manager:
        batch = manager.batch(parts.source, groups, config.rollout.group_size)
    tokens = sum(len(t.prompt_ids) + len(t.response_ids) for g in batch for member in g for t in member.turns)
    context = multiprocessing.get_context("spawn")
    asked, answers = context.Queue(), context.Queue()
    times: dict[str, list[float]] = {name: [] for name in ("one thread", "two threads", "two ranks", "publish", "save")}
    with tempfile.TemporaryDirectory() as folder:
        given = (folder, config, batch, asked, answers)
        processes = [context.Process(target=rank, args=(number, *given)) for number in range(2)]
        for process in processes:
            process.start()

        def of_ranks(what: str) -> float:
            asked.put(what)
            return float(answers.get(timeout=600))

        answers.get(timeout=600)
        for number in range(rounds + 1):
            torch.set_num_threads(1)
            found = {"one thread": update(learner, batch)}
            torch.set_num_threads(2)
            found |= {"two threads": update(learner, batch), "two ranks": of_ranks("update")}
            found |= {"publish": of_ranks("publish"), "save": of_ranks(f"{folder}/{number}")}
            if number:  # the first one warms up
                for name, seconds in found.items():
                    times[name].append(seconds)
        asked.put("end")
        for process in processes:
            process.join()
    middle = {name: statistics.median(values) for name, values in times.items()}
    millions = sum(p.numel() for p in parts.player.model.parameters()) / 1e6
    one = middle["one thread"]
    ratios = [f"{one / middle[name]:.2f}" for name in ("two threads", "two ranks")]
    return [f"{millions:.1f} M", tokens, one, *ratios, middle["publish"], middle["save"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = [measure(*shape, options.groups, options.rounds) for shape in SIZES[options.size]]
    head = [
        "parameters",
        "tokens",
        "one thread, s",
        "two threads, x",
        "two ranks, x",
        "weights to player, s",
        "save, s",
    ]
    about = (
        "Seconds of an update in one process with one thread, and how many times faster two threads and two ranks of\n"
        f"one thread each are: medians of {options.rounds} rounds, in turn. Two ranks also send the weights of every\n"
        "layer and their gradients through the loopback device. Then seconds to bring the ranks' weights to the\n"
        "player, and to write their shards.\n"
    )
    save("ranks", f"{header()}\n{about}\n{table(head, rows)}")


if __name__ == "__main__":
    main()
