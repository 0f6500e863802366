"""Filters of groups, and tasks whose settings are wrong."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv.agents import RandomAgent
from rollenv.agents.base import Action
from rollenv.core import registry
from rollenv.rollout import EpisodeLimits, Group, RolloutManager, Task, Trajectory, Turn
from rollenv.rollout.filters import mean_between, varied

REWARDS = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=1, max_size=8)


def group(*members):
    def trajectory(rewards):
        return Trajectory(Task("game:Test-v0", 0), [Turn((), (), (), r, "", "") for r in rewards], "terminated")

    return Group(Task("game:Test-v0", 0), [trajectory(rewards) for rewards in members])


@given(REWARDS, st.randoms(use_true_random=False))
def test_the_order_of_the_same_rewards_makes_no_group_varied(rewards, rng: random.Random):
    orders = [rng.sample(rewards, len(rewards)) for _ in range(4)]
    assert not varied()(group(*orders))
    assert varied()(group(*orders, [sum(rewards) + 0.001]))


def test_a_group_that_always_succeeds_is_solved_whatever_its_rewards_add_up_to():
    assert not mean_between(0.0, 1.0)(group([0.1] * 10, [0.7, 0.2, 0.1]))
    assert mean_between(0.0, 1.0)(group([1.0], [0.999]))
    with pytest.raises(rollenv.UsageError):
        mean_between(1, 1)


class Impossible(rollenv.Env):
    """Its settings allow no task."""

    made = 0

    def _reset(self, options):
        Impossible.made += 1
        raise rollenv.UsageError("no task has 4 moves within 3 turns; raise max_turns")


def test_settings_that_allow_no_task_end_the_rollout_at_once(monkeypatch):
    monkeypatch.setattr(registry, "ENV_REGISTRY", dict(registry.ENV_REGISTRY))
    rollenv.register("test:Impossible-v0", Impossible)
    with RolloutManager(RandomAgent()) as manager, pytest.raises(rollenv.UsageError, match="raise max_turns"):
        manager.collect([Task("test:Impossible-v0", 0)])
    assert Impossible.made == 1


class Wordy:
    """Answers with ten tokens each time."""

    def start(self, env, seed):
        return self

    async def act(self, observation, info):
        return Action("\\boxed{up}", (1,), tuple(range(10)), (0.0,) * 10)

    def close(self):
        pass


@pytest.mark.parametrize(("tokens", "turns"), [(1, 1), (25, 3), (30, 3)])
def test_an_episode_ends_when_its_tokens_are_spent(tokens, turns):
    with RolloutManager(Wordy(), limits=EpisodeLimits(tokens=tokens)) as manager:
        (group,) = manager.collect([Task("game:Sokoban-v0-easy", 0)])
    (trajectory,) = group
    assert (trajectory.status, len(trajectory.turns)) == ("truncated", turns)
