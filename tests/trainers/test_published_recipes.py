"""The recipes of published runs set what those runs had, and leave nothing over."""

from __future__ import annotations

import pytest

import rollenv
from rollenv.trainers.config import load_config

pytest.importorskip("torch")
pytest.importorskip("transformers")

PUBLISHED = {
    "kl": {"name": "loss", "coef": 0.01, "kind": "k3"},
    "rewards": {"success_only": True, "scale": 10.0, "invalid_penalty": 0.1},
    "algorithm": {"name": "gigpo", "statistics": "rows", "normalize_std": False, "gamma": 0.95, "step_weight": 1.0},
    "loss": {"aggregate": "token", "clip_low": 0.2, "clip_high": 0.2, "dual": 3.0, "entropy": 0.001},
    "eval": {"temperature": 0.4},
    "rollout": {"max_prompt_tokens": 4096, "max_new_tokens": 512, "groups_per_batch": 16, "group_size": 8},
    "optimizer": {"lr": 1e-6, "minibatch_sequences": 64, "old_logprobs": "recomputed"},
}


@pytest.mark.parametrize("section", PUBLISHED)
def test_webshop_as_published(section):
    found = getattr(load_config("webshop_published"), section).model_dump()
    assert {key: found[key] for key in PUBLISHED[section]} == PUBLISHED[section]


def test_a_penalty_is_taken_once():
    config = load_config("webshop_published")
    for kwargs in (config.env.kwargs, config.eval.kwargs):
        assert kwargs["invalid_action_penalty"] == 0.0
    assert load_config("roll_sokoban").rewards.invalid_penalty == 0.0


def test_the_sokoban_of_roll_pays_as_in_its_example():
    config = load_config("roll_sokoban")
    with rollenv.make(config.env.id, **config.env.kwargs) as env:
        env.reset(seed=0)
        assert env.step("nonsense")[1] == -0.05
        assert env.step("<answer>up</answer>")[1] == pytest.approx(-0.1)
        assert env.max_turns == 10


def test_rewards_of_a_grid_are_a_table_too():
    fields = {"success": 2.0, "invalid": -0.5, "invalid_ends": False}
    with rollenv.make("roll:FrozenLake-v0", rewards=fields) as env:
        env.reset(seed=0)
        assert env.step("nonsense")[1:3] == (-0.5, False)
    with pytest.raises(rollenv.UsageError, match="'sucess'"):
        rollenv.make("roll:FrozenLake-v0", rewards={"sucess": 1.0})
