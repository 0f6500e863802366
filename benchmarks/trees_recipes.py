"""What the samples of the bundled recipes share: tokens as they are, of different inputs, and of their trees.

One batch is played for each recipe, by the tiny model after a short warm-up; it is cut into optimizer steps and
micro-batches as an update cuts it.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time

import numpy as np
from common import header, save, table

from rollenv.trainers.config import load_config
from rollenv.trainers.config.run import OptimizerConfig
from rollenv.trainers.experience import Experience, experience, micro_batches, minibatches
from rollenv.trainers.policies.base import Policy
from rollenv.trainers.policies.packed import pack
from rollenv.trainers.prefixes import LEAST_SHARED
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer

RECIPES = ("sokoban", "webshop", "tools", "rlvr", "rlvr_tools")
SHORT = ["threads=1", "model.warm_up.steps=60", "model.warm_up.episodes=400", "iterations=1"]


def passes(policy: Policy, data: Experience, optimizer: OptimizerConfig, *, share: bool) -> tuple[int, float]:
    """Tokens that go through the model in an update, and seconds of packing, forward and backward passes."""
    data.columns = {"weights": np.ones(len(data))}
    steps = minibatches(data, optimizer.minibatch_sequences, random.Random(0))
    tokens, started = 0, time.process_time()
    for step in filter(None, steps):
        for piece in micro_batches(data, step, optimizer.micro_batch_tokens, share=share):
            batch = pack(data, piece, policy.device, share=share)
            out = policy.logprobs(batch, ("logprobs", "entropy"))
            assert out.logprobs is not None
            policy.backward(out.logprobs.sum())
            tokens += len(batch.ids)
    return tokens, time.process_time() - started


def line(recipe: str, groups: int) -> list[object]:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(recipe, [*SHORT, f"run_dir={folder}/run"])
        with Trainer(config, RunDir.create(config, recipe)) as trainer:
            played = trainer.manager.batch(trainer.parts.source, groups, config.rollout.group_size)
            data, policy = experience(played, config.samples), trainer.parts.policy
            found: dict[bool, list[tuple[int, float]]] = {False: [], True: []}
            for share in (False, True) * 4:
                found[share].append(passes(policy, data, config.optimizer, share=share))
    raw = sum(map(len, data.inputs))
    (distinct, slow), (unique, fast) = (min(found[share], key=lambda one: one[1]) for share in (False, True))
    shape = [recipe, f"{groups} x {config.rollout.group_size}", config.samples, len(data.samples), raw]
    return [*shape, f"{raw / distinct:.2f}", f"{raw / unique:.2f}", f"{distinct / unique:.2f}", f"{slow / fast:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=32, help="played for each recipe")
    parser.add_argument("--only", nargs="*", default=RECIPES, choices=RECIPES)
    given = parser.parse_args()
    rows = [line(recipe, given.groups) for recipe in given.only]
    head = ["recipe", "groups", "a sample is a", "samples", "raw tokens", "raw by different inputs", "raw by tree"]
    head += ["different inputs by tree (bound)", "time: without sharing by tree"]
    about = (
        "Raw tokens by those that the model computes, with equal inputs once and as trees with segments of at least "
        f"{LEAST_SHARED} tokens. Processor time of packing, forward and backward passes, the best of four.\n\n"
    )
    save("trees_recipes", f"# What samples share\n\n{header()}\n{about}{table(head, rows)}")


if __name__ == "__main__":
    main()
