"""Typed actions of an environment, in a form learned from its random actions."""

from __future__ import annotations

import itertools

import pytest

import rollenv
from rollenv.cli.play import VI, letters
from rollenv.core import human_input
from rollenv.rollout import validation


class Lamp(rollenv.Env):
    """Its random actions are those of a function."""

    def __init__(self, sample):
        super().__init__()
        self.sample = sample

    def _reset(self, options):
        return "a lamp", {}

    def _step(self, action):
        return "lit", 1.0, True, False, {}

    def sample_random_action(self):
        return self.sample()


def known(sample):
    """What is learned from random actions."""
    env = Lamp(sample)
    env.reset(seed=0)
    return human_input.reader(env, "a lamp")


def test_a_few_actions_are_all_known():
    turns = itertools.cycle(["[on]", "[off]", "[up]", "[down]"])
    found = known(lambda: next(turns))
    assert found.few == ("[down]", "[off]", "[on]", "[up]")
    assert found.action("of") == "[off]"
    assert found.moves["left"] == "[left]"


@pytest.mark.parametrize("error", [ValueError, KeyError, RecursionError, rollenv.UsageError, NotImplementedError])
@pytest.mark.parametrize("good", [0, 3, 50])
def test_an_environment_whose_random_actions_fail_is_played_by_what_is_typed(error, good):
    left = iter(range(good))

    def sample():
        if next(left, None) is None:
            raise error("no action")
        return "on"

    found = known(sample)
    assert found.few == ()
    assert found.action("off") == "off"


def test_random_actions_that_are_no_texts_are_left_out():
    assert known(lambda: 3) == human_input.ActionReader()
    assert known(lambda: None) == human_input.ActionReader()


def test_an_environment_that_takes_long_for_an_action_is_not_waited_for(monkeypatch):
    now = itertools.count()
    monkeypatch.setattr(human_input.time, "monotonic", lambda: next(now))
    asked = []
    found = known(lambda: asked.append(1) or "on")
    assert len(asked) < 5
    assert found.few == ()
    assert found.action("off") == "off"


def test_letters_move_only_where_all_words_are_known_and_none_begins_with_one():
    def cycle(*words):
        turns = itertools.cycle(words)
        return known(lambda: next(turns))

    many = cycle("north", "south", "east", "west", *(f"say {n}" for n in range(30)))
    assert many.moves
    assert letters(many) == {}  # there may be "look"
    assert letters(cycle("north", "south", "east", "west")) == VI
    assert letters(cycle("north", "south", "east", "jump")) == {}


class Till(rollenv.Env):
    """What can be done changes with what was done, and is listed, or found in random actions."""

    def __init__(self, lists):
        super().__init__()
        self.lists = lists

    def _reset(self, options):
        self.can = ["[buy]"]
        return "a till", {"actions": self.can} if self.lists else {}

    def _step(self, action):
        self.can = ["[sell]", "[wait]"]
        return "bought", 0.0, False, False, {"actions": self.can} if self.lists else {}

    def sample_random_action(self):
        return self.action_rng.choice(self.can)


@pytest.mark.parametrize("lists", [True, False])
def test_the_actions_of_each_turn_are_known_at_that_turn(lists):
    env = Till(lists)
    observation, info = env.reset(seed=0)
    learned = human_input.reader(env, observation, info)
    assert learned.now(env, info).few == ("[buy]",)
    info = env.step("[buy]")[4]
    assert learned.now(env, info).few == ("[sell]", "[wait]")
    assert learned.now(env, info).action("s") == "[sell]"


@pytest.mark.parametrize("actions", ["up", [1], 3, {"up": 1}])
def test_actions_that_are_no_texts_are_refused(actions):
    with pytest.raises(validation.BadValue, match="actions"):
        validation.info({"actions": actions})
