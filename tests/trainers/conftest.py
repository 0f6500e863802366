"""A run that is small enough to be made many times, and the task of ``words.py``."""

from __future__ import annotations

import pytest
import words

import rollenv
from rollenv.core import registry


@pytest.fixture(scope="module", autouse=True)
def _words():
    """The task is known in every file, and what a file registers is gone after it."""
    rollenv.list_envs()
    before, registry.ENV_REGISTRY = registry.ENV_REGISTRY, dict(registry.ENV_REGISTRY)
    registry.ENV_REGISTRY.pop(words.ID, None)
    rollenv.register(words.ID, "words:Words", abilities=["oracle", "random_action", "state_key"], indexed=True)
    yield
    registry.ENV_REGISTRY = before


@pytest.fixture(scope="session")
def small() -> list[str]:
    """Overrides of the Sokoban recipe: a run of about five seconds."""
    return [
        "threads=1", "iterations=6", "checkpoint_every=2", "model.size.hidden=32", "model.size.layers=1",
        "model.size.heads=2", "model.size.intermediate=64", "model.warm_up.steps=400", "model.warm_up.episodes=500",
        "model.warm_up.batch_size=64", "rollout.groups_per_batch=8", "rollout.group_size=4", "env.kwargs.min_moves=1",
        "eval.temperature=1.0", "eval.kwargs.min_moves=1", "eval.episodes=20", "eval.every=3", "optimizer.epochs=1",
    ]  # fmt: skip
