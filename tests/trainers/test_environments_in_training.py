"""Environments of a run: in worker processes, in wrappers, and those that hang or die."""

from __future__ import annotations

import json
import os

import pytest
import stuck
from tiny_runs import numbers, start

import rollenv
from rollenv.agents.tiny.model import build_tokenizer
from rollenv.core import registry
from rollenv.core.wrappers import TOKENIZER_REQUIRED, WRAPPER_FACTORY


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
        runs.append(numbers(run))
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
    rows = numbers(run)
    assert rows[-1]["iteration"] == 2
    assert rows[-1]["optimizer_steps"] > 0


@pytest.mark.integration
@pytest.mark.parametrize("name", WRAPPER_FACTORY)
def test_every_wrapper_and_tool_of_the_factory_reaches_training(tmp_path, small, retrieval_url, name):
    tokenizer = build_tokenizer(["a few words"], 300)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    settings = f'{{tokenizer = "{tmp_path / "tokenizer"}"}}' if name in TOKENIZER_REQUIRED else "{}"
    settings = f'{{search_url = "{retrieval_url}"}}' if name.startswith("search_tool") else settings
    overrides = [
        *small,
        f"env.wrappers.{name}={settings}",
        "iterations=1",
        "model.size.context=2048",
        "model.warm_up.steps=20",
    ]
    overrides += ["model.warm_up.episodes=20", "prompt.template='{instructions}{observation}'", "eval.episodes=4"]
    overrides += ["rollout.groups_per_batch=2"]
    with start(tmp_path / "run", overrides) as run:
        run.fit()
    rows = [json.loads(line) for line in run.run.episodes_file.read_text().splitlines()]
    first = rows[-1]["turns"][0]["observation"]
    last = rows[-1]["turns"][-1]["observation"] if len(rows[-1]["turns"]) > 1 else rows[-1]["final_observation"]
    assert rows[-1]["task"]["wrappers"].keys() == {name}
    assert ("Sokoban" in last) is name.startswith("concat"), "the instructions are still there in the last turn"
    assert ("<user>" in first) is (name in TOKENIZER_REQUIRED)
    assert ("<python>" in first) is name.startswith("python_tool")
    assert ("<search>" in first) is name.startswith("search_tool")
