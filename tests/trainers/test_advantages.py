"""Advantages of trajectories against the papers' formulas written out as loops, and against examples worked by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ragged_batches import cases, deviation, mean, score

from rollenv.core.errors import UsageError
from rollenv.trainers.advantages import group_normalize, grpo, maxrl, reinforce, reinforce_pp, rloo

BY_GROUP = {
    "grpo": grpo,
    "dr_grpo": lambda r, g: grpo(r, g, std=False),
    "rloo": rloo,
    "maxrl": maxrl,
    "pp": lambda r, g: reinforce_pp(r, g, np.arange(1, len(r) + 1), baseline=True),
}


def members(case, n):
    return [total for total, group in zip(case.totals, case.groups, strict=True) if group == case.groups[n]]


@given(cases(), st.booleans())
def test_grpo_is_the_groups_standard_score(case, std):
    expected = [score(total, members(case, n), std) for n, total in enumerate(case.totals)]
    assert grpo(case.totals, case.groups, std=std) == pytest.approx(expected, abs=1e-8)
    assert group_normalize(case.totals, case.groups, std=std) == pytest.approx(expected, abs=1e-8)


@given(cases())
def test_rloo_compares_with_the_others_only(case):
    for n, advantage in enumerate(rloo(case.totals, case.groups)):
        others = [t for m, t in enumerate(case.totals) if m != n and case.groups[m] == case.groups[n]]
        assert advantage == pytest.approx(case.totals[n] - mean(others) if others else 0.0, abs=1e-9)


@given(cases())
def test_maxrl_divides_by_the_groups_mean(case):
    for n, advantage in enumerate(maxrl(case.totals, case.groups)):
        centre = mean(members(case, n))
        assert advantage == pytest.approx((case.totals[n] - centre) / centre if centre > 1e-6 else 0.0, abs=1e-8)


@given(cases(), st.booleans())
def test_reinforce_pp_whitens_as_if_every_token_were_a_value(case, baseline):
    tokens = []
    for n, rewards in enumerate(case.rewards):
        tokens += [case.totals[n] - (mean(members(case, n)) if baseline else 0.0)] * (3 * len(rewards))
    spread = deviation(tokens)
    expected = [(tokens[i] - mean(tokens)) / math.sqrt(spread**2 + 1e-8) for i in range(len(tokens))]
    lengths = [3 * len(r) for r in case.rewards]
    advantages = reinforce_pp(case.totals, case.groups, lengths, baseline=baseline)
    assert np.repeat(advantages, lengths) == pytest.approx(expected, abs=1e-6)


def test_reinforce_is_a_copy_of_the_return():
    rewards = np.array([1.0, -2.0])
    advantages = reinforce(rewards)
    advantages[0] = 7
    assert rewards.tolist() == [1.0, -2.0]
    assert reinforce(rewards).tolist() == [1.0, -2.0]


@pytest.mark.parametrize("name", BY_GROUP)
def test_groups_without_a_signal_get_zeros_not_noise(name):
    estimate = BY_GROUP[name]
    assert estimate(np.array([0.7]), np.array([0])).tolist() == [0]
    for value in (0.1 + 0.2, 1e12 + 0.1, -1 / 3):  # whose mean over 3 or 7 is not exact
        for size in (3, 7):
            assert estimate(np.full(size, value), np.zeros(size, dtype=int)).tolist() == [0] * size


@given(cases(), st.sampled_from(sorted(BY_GROUP)), st.randoms(use_true_random=False))
def test_names_of_groups_and_the_order_of_members_do_not_matter(case, name, rng):
    estimate = BY_GROUP[name]
    before = estimate(case.totals, case.groups)
    assert estimate(case.totals, 10**12 - 7 * case.groups) == pytest.approx(before)
    if name != "pp":  # whose tokens would have to be permuted too
        order = rng.sample(range(len(before)), len(before))
        assert estimate(case.totals[order], case.groups[order]) == pytest.approx(before[order], abs=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
@pytest.mark.parametrize("name", BY_GROUP)
def test_a_return_that_is_not_finite_is_refused_with_its_trajectory(name, bad):
    with pytest.raises(UsageError, match="trajectory 2"):
        BY_GROUP[name](np.array([0.0, 1.0, bad]), np.array([0, 0, 1]))
    with pytest.raises(UsageError, match="trajectory 0"):
        reinforce([bad])


@pytest.mark.parametrize("name", BY_GROUP)
def test_an_empty_batch_is_no_error(name):
    assert BY_GROUP[name](np.array([]), np.array([], dtype=int)).tolist() == []


def test_a_trajectory_without_tokens_does_not_count_in_whitening():
    with_empty = reinforce_pp([1.0, 0.0, 50.0], [0, 0, 0], [1, 3, 0], baseline=False)
    assert with_empty == pytest.approx([1.5, -0.5, 0.0], abs=1e-6)
