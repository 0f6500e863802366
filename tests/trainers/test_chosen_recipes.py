"""Runs on an environment's id, without a recipe."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import rollenv
from rollenv.cli.main import app
from rollenv.core import registry
from rollenv.core.errors import MissingData, UsageError
from rollenv.envs.game.sokoban import Sokoban
from rollenv.rollout.records import storage
from rollenv.rollout.types import Task, Trajectory
from rollenv.trainers.config import differences, load_config
from rollenv.trainers.preflight import try_environments
from rollenv.trainers.training import train


def test_settings_follow_the_texts_and_the_splits_of_the_id():
    config = load_config("game:Sokoban-v0-tiny")
    assert config.rollout.max_new_tokens == 1, "an action is one token of the tiny model"
    assert config.env.kwargs == {"split": "train"}
    assert config.eval.kwargs == {"split": "test"}
    assert config.model.path == "tiny"
    assert 0 < config.model.warm_up.noise < 1
    longer = load_config("math:Arithmetic-v0-digit", ["iterations=3"])
    assert longer.rollout.max_new_tokens > 1
    assert longer.iterations == 3


def test_a_model_that_has_to_see_imitates_fewer_random_actions():
    words, seen = (load_config("game:Sokoban-v0-tiny", more) for more in ([], ["env.images=only"]))
    assert 0 < seen.model.warm_up.noise < words.model.warm_up.noise


GAME = """
import numpy as np

import rollenv


class Once(rollenv.Env):
    players = 2

    def _reset(self, options):
        return "Say 1.", {"player": 0}

    def _step(self, action):
        won = action == "1"
        info = {"rewards": [won - 0.5, 0.5 - won], "observations": ["", ""], "success": np.array([won, not won])}
        return "", won - 0.5, True, False, info

    def oracle_action(self):
        return "1"

    def sample_random_action(self):
        return self.action_rng.choice("12")
"""


def test_the_wins_of_a_game_may_be_an_array(tmp_path: Path):
    (tmp_path / "once.py").write_text(GAME)
    assert load_config(f"{tmp_path / 'once.py'}:Once").model.warm_up.noise > 0


def test_arguments_of_the_id_are_those_of_training_and_evaluation():
    config = load_config("game:Sokoban-v0-tiny", ["env.kwargs.max_turns=60"])
    assert config.env.kwargs == {"max_turns": 60, "split": "train"}
    assert config.eval.kwargs == {"max_turns": 60, "split": "test"}
    own = load_config("game:Sokoban-v0-tiny", ["env.kwargs.split=test", "eval.kwargs.split=train"])
    assert (own.env.kwargs, own.eval.kwargs) == ({"split": "test"}, {"split": "train"})
    with pytest.raises(UsageError, match="'max_turns'"):
        load_config("game:Sokoban-v0-tiny", ["env.kwargs.max_turn=60"])
    with pytest.raises(UsageError, match=r"env\.kwargs"):
        load_config("game:Sokoban-v0-tiny", ["env.kwargs=60"])


def test_functions_that_no_text_describes_are_given_to_the_template_or_missed(caplog: pytest.LogCaptureFixture):
    config = load_config("tools:Tiny-v0", ["model=some/model", "env.kwargs.calls=native"])
    assert (config.prompt.kind, config.prompt.tools) == ("conversation", "template")
    try_environments(config)
    assert not caplog.records
    try_environments(load_config("tools:Tiny-v0", ["model=m", "env.kwargs.calls=native", "prompt.kind=step"]))
    assert "prompt.tools=template" in caplog.text


def test_splits_that_differ_in_a_secret_are_not_chosen():
    config = load_config("game:GuessTheNumber-v0-easy")
    assert config.env.kwargs == config.eval.kwargs == {}


def test_a_data_set_of_one_split_trains_on_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    class OneSplit(Sokoban):
        def __init__(self, split: str = "test"):
            if split != "test":
                raise MissingData(f"there is no split {split}")
            super().__init__()

        def num_tasks(self) -> int:
            return 3

    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rollenv.register("test:OneSplit-v0", OneSplit, abilities=["oracle", "random_action"], indexed=True)
    config = load_config("test:OneSplit-v0", ["model=some/model"])
    assert config.env.kwargs == config.eval.kwargs == {}
    assert config.eval.episodes == 3
    assert "evaluation plays the tasks that are trained on" in caplog.text


def test_success_teaches_where_an_episode_that_ends_at_once_earns_more():
    assert load_config("gym:CliffWalking-v1").rewards.success_only
    assert not load_config("game:Sokoban-v0-tiny").rewards.success_only


def test_a_pretrained_model_reads_examples_of_the_expert():
    config = load_config("game:Sokoban-v0-tiny", ["model=some/model"])
    assert (config.model.path, config.prompt.examples, config.prompt.chat) == ("some/model", 3, True)


def test_an_id_without_an_expert_asks_for_a_model():
    with pytest.raises(UsageError, match=r"no expert.*model=PATH"):
        load_config("ta:SimpleNegotiation-v0")


def test_answers_too_long_for_the_tiny_model_ask_for_another():
    with pytest.raises(UsageError, match="model=PATH"):
        load_config("rg:palindrome_partitioning")


def test_an_expert_that_raises_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch):
    class Broken(Sokoban):
        def oracle_action(self) -> str:
            raise ZeroDivisionError("by the secret")

    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rollenv.register("test:Broken-v0", Broken, abilities=["oracle", "random_action"])
    with pytest.raises(UsageError, match=r"test:Broken-v0.*ZeroDivisionError"):
        load_config("test:Broken-v0")


class Asks(Sokoban):
    def __init__(self, rooms: int):
        super().__init__()


class Broken(Sokoban):
    def __init__(self):
        raise RuntimeError("no board")


@pytest.mark.parametrize(("env", "says"), [(Asks, "test:Asks-v0 .*'rooms'"), (Broken, "test:Broken-v0 .*no board")])
@pytest.mark.parametrize("model", ["tiny", "some/model"])
def test_what_is_wrong_with_an_environment_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch, env, says, model):
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rollenv.register(f"test:{env.__name__}-v0", env, abilities=["oracle", "random_action"])
    with pytest.raises(UsageError, match=says):
        try_environments(load_config(f"test:{env.__name__}-v0", [f"model={model}"]))


class Silent(Sokoban):
    def _reset(self, options):
        super()._reset(options)
        return "", {}

    def _step(self, action):
        return "", *super()._step(action)[1:4], {"success": True, "valid": True}


def test_the_tiny_model_needs_text_to_answer_to(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rollenv.register("test:Silent-v0", Silent, abilities=["oracle", "random_action"])
    with pytest.raises(UsageError, match="text"):
        load_config("test:Silent-v0")


@pytest.mark.combinations
@pytest.mark.parametrize("recipe", ["sokoban", "game:GuessTheNumber-v0-easy", "rlvr_math"])
def test_a_written_recipe_gives_the_same_settings(rollenv_command, recipe: str, tmp_path: Path):
    file = tmp_path / "own.toml"
    done = rollenv_command("train", recipe, "seed=3", "--write-recipe", str(file))
    assert done.returncode == 0, done.stderr
    assert load_config(str(file)) == load_config(recipe, ["seed=3"])


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=some/model"],  # of which the tiny model's size and warm-up say nothing
        ["loss.entropy=0"],
        ["model=some/model", "tasks={kind='mixture', parts=[{env={id='rg:chain_sum'}}]}"],
    ],
)
def test_a_written_recipe_leaves_out_what_does_nothing(overrides: list[str], tmp_path: Path):
    written = tmp_path / "own.toml"
    assert not app(["train", "sokoban", *overrides, "--write-recipe", str(written)], standalone_mode=False)
    assert differences(load_config(str(written))) == differences(load_config("sokoban", overrides))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sokoban", "--write-recipe", "none/own.toml"], "cannot write none/own.toml: No such file"),
        (["sokoban", "--write-recipe", "own.toml"], "cannot write own.toml: File exists"),
        # the run is looked for; that the id has no expert does not matter
        (["ta:Nim-v0", "run_dir=run", "--resume"], "cannot resume run"),
        (["a-run"], "rollenv train --resume run_dir=a-run"),
    ],
)
def test_a_command_that_cannot_be_done_is_an_error_in_a_line(monkeypatch, tmp_path: Path, capsys, arguments, says):
    (tmp_path / "own.toml").write_text("kept")
    (tmp_path / "a-run").mkdir()
    storage.write(tmp_path / "a-run" / "episodes.jsonl", [Trajectory(Task("ta:Nim-v0", 0))])
    monkeypatch.chdir(tmp_path)
    assert app(["train", *arguments], standalone_mode=False) == 2
    assert says in capsys.readouterr().err
    assert (tmp_path / "own.toml").read_text() == "kept"


def test_a_recipe_for_another_id_drops_arguments_that_it_does_not_take(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        config = load_config("tools", ["env.id=rg:chain_sum"])
    assert config.env.kwargs == config.eval.kwargs == {}
    assert "rg:chain_sum" in caplog.text
    assert "split" in caplog.text
    kept = load_config("tools", ["env.id=rg:chain_sum", "env.kwargs.split=test"])
    assert kept.env.kwargs == {"split": "test"}, "the user's own argument is an error later, not dropped"


@pytest.mark.integration
def test_an_id_trains_without_a_recipe(tmp_path: Path):
    small = ["iterations=2", "eval.episodes=20", "model.warm_up.episodes=200", "model.warm_up.steps=20"]
    result = train("math:Arithmetic-v0-digit", *small, f"run_dir={tmp_path / 'run'}")
    assert 0 <= result.after["eval/success"] <= 1
