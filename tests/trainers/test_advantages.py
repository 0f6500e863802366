"""Advantages against the formulas written out as loops."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.trainers.advantages import discounted_returns, gigpo, grpo

REWARD = st.sampled_from([-0.1, 0.0, 0.5, 1.0, 10.0])


@st.composite
def rollouts(draw):
    """Rewards per turn, group labels and state keys of a few trajectories."""
    rewards = draw(st.lists(st.lists(REWARD, min_size=1, max_size=5), min_size=1, max_size=10))
    groups = draw(st.lists(st.integers(0, 3), min_size=len(rewards), max_size=len(rewards)))
    turns = sum(map(len, rewards))
    states = draw(st.lists(st.sampled_from("abc"), min_size=turns, max_size=turns))
    return rewards, np.array(groups), states


def normalized(value, members, std):
    if len(members) < 2 or statistics.stdev(members) <= 1e-6:
        return 0.0
    centred = value - statistics.mean(members)
    return centred / (statistics.stdev(members) + 1e-6) if std else centred


@given(rollouts(), st.booleans())
def test_grpo_is_the_groups_standard_score(case, std):
    rewards, groups, _ = case
    totals = [sum(r) for r in rewards]
    for i, advantage in enumerate(grpo(np.array(totals), groups, std=std)):
        members = [t for t, g in zip(totals, groups, strict=True) if g == groups[i]]
        assert advantage == pytest.approx(normalized(totals[i], members, std), abs=1e-6)


@given(rollouts(), st.booleans(), st.floats(0.5, 1.0), st.floats(0, 2))
def test_gigpo_adds_the_standard_score_among_equal_states_of_the_group(case, std, gamma, weight):
    rewards, groups, states = case
    turns = [(n, t) for n, r in enumerate(rewards) for t in range(len(r))]
    returns = {(n, t): sum(gamma**k * r for k, r in enumerate(rewards[n][t:])) for n, t in turns}
    key = {turn: (groups[turn[0]], state) for turn, state in zip(turns, states, strict=True)}
    result = gigpo(rewards, groups, states, gamma=gamma, step_weight=weight, std=std)
    assert len(result) == len(turns)
    for (n, t), advantage in zip(turns, result, strict=True):
        peers = [sum(r) for r, g in zip(rewards, groups, strict=True) if g == groups[n]]
        anchored = [returns[other] for other in turns if key[other] == key[n, t]]
        expected = normalized(sum(rewards[n]), peers, std) + weight * normalized(returns[n, t], anchored, std)
        assert advantage == pytest.approx(expected, abs=1e-5)


@given(rollouts())
def test_group_advantages_sum_to_zero_and_ignore_other_groups(case):
    rewards, groups, _ = case
    totals = np.array([sum(r) for r in rewards])
    whole = grpo(totals, groups)
    for g in set(groups.tolist()):
        mine = groups == g
        assert whole[mine].sum() == pytest.approx(0, abs=1e-6)
        assert whole[mine] == pytest.approx(grpo(totals[mine], np.zeros(mine.sum(), dtype=int)))


def test_worked_examples():
    assert grpo(np.array([1.0, 0, 0, 0]), np.zeros(4, dtype=int)) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert grpo(np.array([1.0, 0.0]), np.zeros(2, dtype=int), std=False) == pytest.approx([0.5, -0.5])
    assert discounted_returns([[0, 0, 1.0], [1.0]], 0.5) == pytest.approx([0.25, 0.5, 1.0, 1.0])


def test_groups_without_a_signal_get_zeros_not_noise():
    assert grpo(np.array([0.7]), np.array([0])).tolist() == [0]
    alike = grpo(np.full(8, 0.1 + 0.2), np.zeros(8, dtype=int))
    assert alike.tolist() == [0] * 8
    assert gigpo([[1.0]], np.array([0]), ["a"]).tolist() == [0]


def test_equal_states_of_different_tasks_are_not_compared():
    result = gigpo([[1.0], [0.0]], np.array([0, 1]), ["same", "same"])
    assert result.tolist() == [0, 0]


def test_an_empty_batch_is_no_error():
    assert grpo(np.array([]), np.array([], dtype=int)).tolist() == []
    assert gigpo([], np.array([], dtype=int), []).tolist() == []
    assert not math.isnan(discounted_returns([], 0.9).sum())
