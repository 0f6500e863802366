"""Answers without a box: nothing in the question can be copied as one, and numbers of the splits are apart."""

from __future__ import annotations

import re

import pytest
from played import to_the_end

import rollenv
from rollenv import UsageError


@pytest.mark.parametrize("seed", range(5))
def test_a_bare_question_shows_no_number_but_its_own(seed):
    with rollenv.make("math:Arithmetic-v0-digit") as env:
        question, _ = env.reset(seed=seed)
    assert re.findall(r"\d+", question) == re.findall(r"\d+", env.unwrapped.task)


@pytest.mark.parametrize(
    ("action", "valid"),
    [
        ("7", True),
        (" 7\n", True),
        ("\\boxed{7}", False),
        ("7.", False),
        ("It is 7", False),
        ("", False),
        ("7 8", False),
    ],
)
def test_a_bare_guess_is_the_number_and_nothing_else(action, valid):
    with rollenv.make("game:GuessTheNumber-v0", action_format="bare") as env:
        question, _ = env.reset(seed=0)
        assert "boxed" not in question
        info = env.step(action)[4]
    assert info["valid"] is valid


def test_the_expert_wins_without_a_box():
    with rollenv.make("game:GuessTheNumber-v0", action_format="bare") as env:
        env.reset(seed=1)
        assert to_the_end(env)[-1][1] == 1.0


def test_splits_share_no_number_and_are_all_of_them():
    drawn = {}
    for split in ("train", "test", "all"):
        with rollenv.make("game:GuessTheNumber-v0", split=split) as env:
            drawn[split] = {(env.reset(seed=seed), env.unwrapped.secret)[1] for seed in range(400)}
    assert drawn["all"] == set(range(1, 21)) == drawn["train"] | drawn["test"]
    assert not drawn["train"] & drawn["test"]


def test_a_wrong_form_or_split_is_refused():
    with pytest.raises(UsageError, match="action_format"):
        rollenv.make("game:GuessTheNumber-v0", action_format="code")
    with pytest.raises(UsageError, match="split"):
        rollenv.make("game:GuessTheNumber-v0", split="dev")
    with pytest.raises(UsageError, match="1 to 2"):
        rollenv.make("game:GuessTheNumber-v0", min_number=1, max_number=2, split="test")
