"""Training with a recipe, in this process or in Ray's."""

from __future__ import annotations

from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.load import load_config
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer, TrainingResult, Watch


def train(recipe: str, *overrides: str, watch: Watch = lambda *_: None) -> TrainingResult:
    """Train with a recipe, in a new run folder.

    Raises:
        TrainingError: losses, gradients or weights are no longer finite.
    """
    config = load_config(recipe, overrides)
    return train_in(RunDir.create(config, recipe), config, watch)


def train_in(run: RunDir, config: TrainConfig, watch: Watch = lambda *_: None) -> TrainingResult:
    """Train in a run folder; if it has checkpoints, from the last one."""
    if config.placement.by_ray:
        from rollenv.trainers.launch import train_on_ranks  # not above: it needs Ray

        return train_on_ranks(config, run, watch)
    with Trainer(config, run, watch) as trainer:
        return trainer.fit()
