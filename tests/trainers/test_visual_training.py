"""Training on boards that are seen: the tiny model, resume, and settings of the vision part."""

from __future__ import annotations

import pytest
from seeing import seeing, skip_older_transformers
from tiny_runs import chat_model, numbers, start

from rollenv import UsageError
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt
from rollenv.trainers.config import load_config
from rollenv.trainers.preflight import try_environments
from rollenv.trainers.run_dir import RunDir
from rollenv.trainers.trainer import Trainer

SMALL = (
    "model.size.hidden=32", "model.size.intermediate=32", "model.size.layers=1", "model.warm_up.steps=2",
    "model.warm_up.episodes=10", "model.warm_up.batch_size=4", "rollout.groups_per_batch=2", "rollout.group_size=2",
    "eval.episodes=2", "eval.every=2", "checkpoint_every=1", "rollout.processes=0",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "cache"))


def test_a_visual_run_trains_and_resumes_to_the_same_numbers(tmp_path):
    skip_older_transformers()
    whole = start(tmp_path / "whole", (*SMALL, "iterations=2"), "visual_lake")
    whole.fit()
    part = start(tmp_path / "part", (*SMALL, "iterations=1"), "visual_lake")
    part.fit()
    run, config = RunDir.resume(tmp_path / "part")
    again = Trainer(config.model_copy(update={"iterations": 2}), run)
    again.fit()
    mine, its = numbers(again.run.path), numbers(whole.run.path)
    assert [row["iteration"] for row in mine] == [row["iteration"] for row in its]
    for key, value in its[-1].items():
        assert mine[-1][key] == pytest.approx(value), key
    assert its[-1]["drift"] == 0
    agent = LocalAgent.load(tmp_path / "whole")
    assert agent.sees


def test_an_id_with_pictures_chooses_a_recipe():
    config = load_config("roll:FrozenLake-v0", ["env.images=only"])
    assert config.eval.kwargs["images"] == "only"
    assert config.model.size.context >= 18


@pytest.mark.parametrize("vision", ["frozen", "trained"])
def test_a_saved_model_that_sees_is_trained_in_a_chat(tmp_path, vision):
    seeing(prompt=ChatPrompt(), max_new_tokens=4).save(tmp_path / "model")
    overrides = [
        f"model={tmp_path / 'model'}", "env.id=roll:FrozenLake-v0", "env.images=only", "prompt.kind=conversation",
        f"model.vision={vision}", "iterations=1", "rollout.groups_per_batch=2", "rollout.group_size=2",
        "rollout.max_new_tokens=4", "optimizer.lr=1e-2", "rewards.function='words:letters'", "eval.episodes=2",
        "env.kwargs.max_turns=2",
    ]  # fmt: skip
    start(tmp_path / "run", overrides, "roll:FrozenLake-v0").fit()
    before, after = (LocalAgent.load(tmp_path / name).model.state_dict() for name in ("model", "run"))
    changed = {name for name, weight in before.items() if not weight.equal(after[name])}
    assert any("language_model" in name for name in changed)
    assert any("visual" in name for name in changed) == (vision == "trained")


def test_a_model_of_texts_is_refused_before_the_run(tmp_path):
    config = load_config("roll:FrozenLake-v0", [f"model={chat_model(tmp_path / 'model')}", "env.images=only"])
    with pytest.raises(UsageError, match="read texts only"):
        try_environments(config)
