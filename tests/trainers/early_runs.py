"""Runs of a few iterations that compute gradients while episodes are played, or after."""

import words

from rollenv.trainers.config import load_config
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer

BASE = [
    *words.RUN, "iterations=4", "model.warm_up.steps=100", "model.warm_up.lr=1e-2", "rollout.groups_per_batch=6",
    "rollout.group_size=4", "optimizer.lr=2e-2", "optimizer.epochs=1",
]  # fmt: skip
EARLY = "batches.kind=early"
COLLECT = ["batches.kind=collect", "optimizer.minibatch_sequences=100000"]


def config_of(*overrides):
    return load_config("sokoban", [*BASE, *overrides])


def start(path, *overrides) -> Trainer:
    config = config_of(*overrides, f"run_dir={path}")
    return Trainer(config, RunDir(path) if path.exists() else RunDir.create(config, "sokoban"))
