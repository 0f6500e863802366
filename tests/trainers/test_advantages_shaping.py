"""What is done to rewards and advantages: scales, scopes, running moments, length penalties, weights, whitening."""

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ragged_batches import cases, deviation, mean

from rollenv.core.errors import UsageError
from rollenv.trainers.advantages import (
    RunningMoments,
    difficulty_weights,
    length_weights,
    normalize,
    overlong_penalty,
    whiten,
)

SCOPES = st.sampled_from(["none", "group", "batch", "running"])


@given(cases(), SCOPES, SCOPES)
def test_normalize_takes_each_statistic_over_its_scope(case, mean_over, std_over):
    past = [3.0, -1.0, 0.5]
    running = RunningMoments()
    running.update(past)
    values, expected = case.totals.tolist(), []
    for value, group in zip(values, case.groups, strict=True):
        over = {
            "none": None,
            "group": [v for v, g in zip(values, case.groups, strict=True) if g == group],
            "batch": values,
            "running": past,
        }
        centred = value - (mean(over[mean_over]) if over[mean_over] else 0.0)
        spread = deviation(over[std_over]) if over[std_over] else None
        expected.append(centred if spread is None else 0.0 if spread <= 1e-6 else centred / (spread + 1e-6))
    result = normalize(values, case.groups, mean=mean_over, std=std_over, running=running)
    assert result == pytest.approx(expected, abs=1e-8)
    assert running.count == 3


def test_normalize_without_moments_to_run_on_is_refused():
    for running in (None, RunningMoments()):
        with pytest.raises(UsageError, match="update first"):
            normalize([1.0, 2.0], [0, 0], mean="running", std="none", running=running)
    with pytest.raises(UsageError, match="scope"):
        normalize([1.0], [0], std="task")


@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=4), max_size=5), st.integers(0, 4))
def test_running_moments_are_those_of_all_values_and_survive_a_checkpoint(batches, interrupted):
    running = RunningMoments()
    for i, batch in enumerate(batches):
        if i == interrupted:
            stored = json.loads(json.dumps(running.state_dict()))
            running = RunningMoments()
            running.load_state_dict(stored)
        running.update(batch)
    values = [value for batch in batches for value in batch]
    assert running.count == len(values)
    assert running.mean == pytest.approx(mean(values) if values else 0.0, abs=1e-8)
    assert running.std == pytest.approx(deviation(values) if len(values) > 1 else 0.0, abs=1e-6)


def test_running_moments_far_from_zero_keep_their_digits():
    running = RunningMoments()
    for value in range(100):
        running.update([1e9 + value % 2])
    assert running.std == pytest.approx(math.sqrt(25 / 99), rel=1e-6)


def test_running_moments_refuse_what_would_spoil_them():
    running = RunningMoments()
    running.update([1.0, 2.0])
    before = running.state_dict()
    with pytest.raises(UsageError, match="entry 1"):
        running.update([1.0, math.nan])
    assert running.state_dict() == before
    for state in ({"count": 1}, {**before, "more": 1}):
        with pytest.raises(UsageError, match="keys"):
            running.load_state_dict(state)


@given(st.lists(st.tuples(st.sampled_from([-2.0, 0.1, 3.0]), st.integers(0, 5)), max_size=8))
def test_whitening_by_weights_is_whitening_of_every_token(pairs):
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]
    tokens = np.repeat(values, weights)
    spread = deviation(tokens) if len(tokens) > 1 else 0.0
    for value, weight, result in zip(values, weights, whiten(values, weights), strict=True):
        expected = (value - mean(tokens)) / math.sqrt(spread**2 + 1e-8) if weight and len(tokens) > 1 else 0.0
        assert result == pytest.approx(expected, abs=1e-6)
    assert np.repeat(whiten(values, weights), weights) == pytest.approx(whiten(tokens), abs=1e-9)


def test_whitened_tokens_have_mean_0_and_variance_1_and_alike_ones_are_0():
    white = whiten([random.Random(3).gauss(5, 3) for _ in range(50)] + [9.0])
    assert white.mean() == pytest.approx(0, abs=1e-12)
    assert whiten([0.0, 1.0, 4.0, 7.0]).var(ddof=1) == pytest.approx(1, abs=1e-6)
    assert whiten([1e12 + 0.1] * 7).tolist() == [0] * 7
    assert whiten([5.0]).tolist() == whiten([5.0], [1]).tolist() == [0]
    assert whiten([]).tolist() == []
    with pytest.raises(UsageError, match="weight of entry 1"):
        whiten([1.0, 2.0], [1, -1])
    with pytest.raises(UsageError, match="value of entry 1"):
        whiten([1.0, math.nan], [1, 0])


def test_the_overlong_ramp_falls_over_the_buffer():
    # limit 100, buffer 20: nothing up to 80; (80 - 90) / 20 = -1/2; -1 at the limit and beyond
    assert overlong_penalty([10, 80, 85, 90, 100, 130], limit=100, buffer=20).tolist() == [0, 0, -0.25, -0.5, -1, -1]
    for buffer in (0, 101):
        with pytest.raises(UsageError, match="buffer"):
            overlong_penalty([10], limit=100, buffer=buffer)


def test_weights_have_the_mean_1():
    # 1.5 - (0, 1/4, 1) = 1.5 1.25 0.5, mean 13/12
    assert length_weights([10, 20, 50]) == pytest.approx([18 / 13, 15 / 13, 6 / 13])
    assert length_weights([7, 7]).tolist() == [1, 1]
    # 0.5, 1.25, 2, 2 and a negative one as 0: mean 6.25 / 5
    assert difficulty_weights([0, 0.5, 1, 3, -1]) == pytest.approx(np.array([0.5, 1.25, 2, 2, 0.5]) / 1.25)
    assert length_weights([]).tolist() == difficulty_weights([]).tolist() == []
