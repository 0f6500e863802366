"""GAE against its definition as a sum, and against examples worked by hand."""

import math
import random
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.core.errors import UsageError
from rollenv.trainers.advantages import bi_level_gae, empg, token_gae, turn_gae


def by_definition(rewards, values, last, gamma, lam):
    """A_t = sum over l of (gamma lam)^l delta_{t+l}, each term on its own (GAE, eq. 16)."""
    following = [*values, last][1:]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    return [
        math.fsum((gamma * lam) ** step * deltas[t + step] for step in range(len(deltas) - t))
        for t in range(len(deltas))
    ]


@st.composite
def critics(draw):
    """Rewards, values and bootstrap values of trajectories, and turns of their lengths."""
    lengths = draw(st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=4))
    rng = random.Random(draw(st.integers(0, 10**6)))
    values = [[rng.gauss(0, 1) for _ in range(sum(turns))] for turns in lengths]
    return lengths, values, [rng.choice([0.0, rng.gauss(0, 1)]) for _ in lengths], rng


DISCOUNTS = st.sampled_from([(1.0, 1.0), (0.95, 0.9), (0.9, 0.0), (0.0, 0.5)])


@given(critics(), DISCOUNTS, st.sampled_from([token_gae, turn_gae]))
def test_gae_is_the_discounted_sum_of_deltas(case, discounts, estimate):
    _, values, last, rng = case
    rewards = [[rng.choice([0.0, 1.0, -0.1]) for _ in v] for v in values]
    result = estimate(rewards, values, gamma=discounts[0], lam=discounts[1], bootstrap=last)
    expected = [a for r, v, b in zip(rewards, values, last, strict=True) for a in by_definition(r, v, b, *discounts)]
    assert result.advantages == pytest.approx(expected)
    assert result.returns == pytest.approx([a + v for a, v in zip(expected, chain(*values), strict=True)])


@given(critics(), DISCOUNTS, DISCOUNTS)
def test_bi_level_gae_runs_over_turns_and_then_inside_each(case, outer, inner):
    lengths, values, last, rng = case
    rewards = [[rng.choice([0.0, 1.0, -0.1]) for _ in turns] for turns in lengths]
    expected, targets = [], []
    for r, v, sizes, b in zip(rewards, values, lengths, last, strict=True):
        ends = np.cumsum(sizes)
        of_turns = by_definition(r, [v[end - 1] for end in ends], b, *outer)
        for turn, end, size in zip(of_turns, ends, sizes, strict=True):
            tokens = v[end - size : end]
            # the last token's delta is the turn's advantage; before it, values alone
            deltas = [inner[0] * after - now for now, after in pairwise(tokens)] + [turn]
            for i in range(len(tokens)):
                expected.append(sum((inner[0] * inner[1]) ** j * d for j, d in enumerate(deltas[i:])))
                targets.append(expected[-1] + tokens[i])
    settings = {"gamma": outer[0], "lam": outer[1], "token_gamma": inner[0], "token_lam": inner[1]}
    result = bi_level_gae(rewards, values, lengths, bootstrap=last, **settings)
    assert result.advantages == pytest.approx(expected)
    assert result.returns == pytest.approx(targets)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused_with_their_place(bad):
    with pytest.raises(UsageError, match="token 1 of trajectory 1"):
        token_gae([[0.0], [0.0, 0.0]], [[0.0], [0.0, bad]])
    with pytest.raises(UsageError, match="turn 0 of trajectory 1"):
        turn_gae([[0.0], [bad]], [[0.0], [0.0]])
    with pytest.raises(UsageError, match="bootstrap"):
        token_gae([[0.0], [0.0]], [[0.0], [0.0]], bootstrap=[0.0, bad])
    with pytest.raises(UsageError, match="token 2 of trajectory 0"):
        bi_level_gae([[0.0, 0.0]], [[0.0, 0.0, bad]], [[1, 2]])


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="Trajectory 0"):
        token_gae([[0.0]], [[0.0, 0.0]])
    for lengths in ([[1, 1]], [[3, 0]]):
        with pytest.raises(UsageError, match="Trajectory 0"):
            bi_level_gae([[0.0, 0.0]], [[0.0] * 3], lengths)


def test_an_empty_batch_is_no_error():
    for result in (token_gae([], []), turn_gae([[]], [[]]), bi_level_gae([], [], []), bi_level_gae([[]], [[]], [[]])):
        assert result.advantages.tolist() == result.returns.tolist() == []


@given(critics())
def test_empg_weighs_sure_turns_more(case):
    lengths, _, _, rng = case
    turns = [(n, t) for n, sizes in enumerate(lengths) for t in range(len(sizes))]
    entropy, given = ([rng.random() for _ in turns] for _ in range(2))
    if not turns:
        assert empg([], [], [0]).tolist() == []
        return
    low, high = min(entropy), max(entropy)
    unsure = {turn: (h - low) / (high - low + 1e-6) for turn, h in zip(turns, entropy, strict=True)}
    usual = sum(math.exp(-2 * h) for h in unsure.values()) / len(turns)
    raw = []
    for (n, t), a in zip(turns, given, strict=True):
        bonus = 0.1 * math.exp(-unsure[n, t + 1]) if (n, t + 1) in unsure else 0.0
        raw.append(a * math.exp(-2 * unsure[n, t]) / usual + bonus)
    expected = [a - sum(raw) / len(raw) for a in raw]
    assert empg(given, entropy, [len(sizes) for sizes in lengths], scale=2.0) == pytest.approx(expected, abs=1e-9)
