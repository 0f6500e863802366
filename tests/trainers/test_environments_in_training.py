"""Environments of a run: in worker processes, in wrappers, and those that hang or die."""

from __future__ import annotations

import os

import pytest
import stuck
from tiny_runs import numbers, start

import rollenv
from rollenv.core import registry


@pytest.fixture
def stuck_id(monkeypatch):
    rollenv.list_envs()
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rollenv.register(stuck.ID, "stuck:Stuck", abilities=["oracle", "random_action"])


@pytest.mark.integration
def test_worker_processes_give_the_numbers_of_this_process(tmp_path, small):
    """Up to rounding: log-probabilities depend on what is computed together in their last digits."""
    runs = []
    for name, more in (("inline", []), ("processes", ["rollout.workers=2", "rollout.max_concurrent=5"])):
        with start(tmp_path / name, [*small, "iterations=3", *more]) as run:
            run.fit()
        runs.append(numbers(run.run.path))
    assert [row.keys() for row in runs[0]] == [row.keys() for row in runs[1]]
    for here, there in zip(*runs, strict=True):
        assert there == pytest.approx(here, rel=1e-3, abs=1e-6)


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("how", ["hang", "die"])
def test_a_hanging_or_dying_environment_does_not_hold_up_training(tmp_path, small, stuck_id, how):
    overrides = [o for o in small if "min_moves" not in o]
    overrides += [f"env.id={stuck.ID}", "env.kwargs={}", "eval.kwargs={}", "iterations=2", "eval.every=2"]
    overrides += ["env.kwargs.every=7", f"env.kwargs.how={how}", f"env.kwargs.home={os.getpid()}"]
    overrides += ["rollout.workers=2", "rollout.step_deadline=0.5", "rollout.extra_groups=4"]
    overrides += ["rollout.groups_per_batch=12"]
    overrides += ["model.warm_up.steps=50", "eval.episodes=5"]
    with start(tmp_path / "run", overrides) as run:
        run.fit()
    rows = numbers(run.run.path)
    assert rows[-1]["iteration"] == 2
    assert rows[-1]["optimizer_steps"] > 0
