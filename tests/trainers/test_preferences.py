"""Learning from preferences: losses against their papers, gradients against those of a whole graph, pairs of groups."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollenv import UsageError
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers.config import load_config
from rollenv.trainers.config.algorithms import Dmpo, Dpo, Ipo, Kto, Simpo
from rollenv.trainers.experience import experience
from rollenv.trainers.losses import preference
from rollenv.trainers.preferences import Preferences, mismatched

TASK = Task("test:Pairs-v0", 0)
finite = st.floats(-5, 5)


def episode(reward, *answers, shared=0, success=None):
    """Turns whose prompts continue the ones before; ``shared`` of them begin as in every other episode."""
    ids, turns = (1, 2), []
    for number, answer in enumerate(answers):
        response = (7,) * 2 if number < shared else tuple(answer)
        turns.append(Turn(ids, response, (0.0,) * len(response), 0.0, "", ""))
        ids = (*ids, *response, 3)
    turns[-1].reward = reward
    return Trajectory(TASK, turns, "terminated", success=reward > 0.5 if success is None else success)


def batch(*groups):
    return experience([Group(TASK, list(group)) for group in groups], "trajectory")


def returns(data):
    return np.array([t.reward for t in data.trajectories])


def test_losses_at_the_reference():
    zero = torch.zeros(3)
    assert preference.dpo(zero)[0] == pytest.approx(math.log(2))
    assert preference.dpo(zero, smoothing=0.2, robust=True)[0] == pytest.approx(math.log(2))
    assert preference.ipo(zero, beta=0.1)[0] == pytest.approx(25)
    assert preference.simpo(zero, beta=2, gamma=0)[0] == pytest.approx(math.log(2))
    assert preference.kto(zero, torch.tensor([True, False, True]), 0.0)[1] == pytest.approx(0.5)


@given(finite, st.floats(0.01, 0.49), st.floats(0.05, 3))
def test_robust_dpo_is_unbiased_under_flipped_labels(margin, flipped, beta):
    m = torch.tensor([margin], dtype=torch.float64)
    right, wrong = (preference.dpo(sign * m, beta=beta, smoothing=flipped, robust=True) for sign in (1, -1))
    assert float((1 - flipped) * right + flipped * wrong) == pytest.approx(float(preference.dpo(m, beta=beta)))


@pytest.mark.parametrize("gamma", [0.3, 0.7, 1.0])
def test_dmpo_weighs_early_turns_more(gamma):
    weights = preference.dmpo_weights(5, gamma)
    assert weights[0] == pytest.approx(1)
    assert (np.diff(weights) < 0).all()
    if gamma == 1:
        assert weights == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize("call", [
    lambda: preference.dpo(torch.zeros(1), beta=0), lambda: preference.dpo(torch.zeros(1), smoothing=0.5),
    lambda: preference.ipo(torch.zeros(1), beta=0), lambda: preference.simpo(torch.zeros(1), beta=0),
    lambda: preference.kto(torch.zeros(1), torch.tensor([True]), 0.0, beta=0), lambda: preference.dmpo_weights(3, 0),
])  # fmt: skip
def test_settings_out_of_range_are_refused(call):
    with pytest.raises(UsageError):
        call()


ALGORITHMS = [
    Dpo(), Dpo(sft=0.5), Dpo(smoothing=0.1), Dpo(smoothing=0.1, robust=True), Ipo(), Ipo(parted=False), Simpo(), Dmpo(),
    Dpo(pairs="extremes"), Kto(), Kto(desirable=2.0),
]  # fmt: skip


@pytest.mark.parametrize("settings", ALGORITHMS, ids=repr)
def test_advantages_are_the_gradient_of_the_whole_loss(settings):
    """Against numeric derivatives of the reported loss, with the cross-entropy added by hand."""
    data = batch(
        [episode(1.0, (4, 5), (6, 4, 4)), episode(0.0, (5,)), episode(0.4, (8, 8))],
        [episode(0.2, (4,), (5, 9), shared=1), episode(0.9, (4,), (9,), shared=1)],
    )
    rng = np.random.default_rng(0)
    logprobs, reference = -rng.random(len(data)) * 3, -rng.random(len(data)) * 3
    found = Preferences(data, returns(data), settings)
    found.mismatch = 0.3
    given = None if isinstance(settings, Simpo) else reference
    advantages, metrics = found.advantages(logprobs, given)

    def loss(values):
        main = found.advantages(values, given)[1]["loss"]
        if getattr(settings, "sft", 0):
            main -= settings.sft * np.mean([values[rows].mean() for rows, _ in found.chosen])
        return main

    for place in range(len(data)):
        step = np.eye(len(data))[place] * 1e-5
        slope = (loss(logprobs + step) - loss(logprobs - step)) / 2e-5
        assert advantages[place] == pytest.approx(-slope, abs=1e-7)
    assert math.isfinite(metrics["loss"])
    assert not advantages[~found.taught].any()


def test_pairs_are_of_one_group_with_different_returns_and_answers():
    data = batch(
        [episode(1.0, (4,)), episode(0.0, (5,)), episode(0.0, (6,)), episode(1.0, (5,))],
        [episode(0.5, (4,)), episode(0.5, (5,))],
        [episode(1.0, (9,)), episode(0.0, (9,))],
    )
    found = Preferences(data, returns(data), Dpo())
    assert sorted(found.pairs) == [(0, 1), (0, 2), (3, 2)]  # 3 and 1 said the same, by chance rewarded differently
    assert Preferences(data, returns(data), Dpo(pairs="extremes")).pairs == [(0, 2)]
    assert Preferences(data, returns(data), Dpo(margin=2)).pairs == []
    nothing, metrics = Preferences(data, returns(data), Dpo(margin=2)).advantages(np.zeros(len(data)), None)
    assert metrics == {"pairs": 0.0}
    assert not nothing.any()


def test_before_the_first_update_no_pair_is_right_or_wrong():
    data = batch([episode(1.0, (4,)), episode(0.0, (5,))], [episode(0.0, (6, 6)), episode(1.0, (7,))])
    _, metrics = Preferences(data, returns(data), Dpo()).advantages(np.full(len(data), -1.0), np.full(len(data), -1.0))
    assert (metrics["accuracy"], metrics["margin"]) == (0.5, 0.0)


def test_turns_that_a_pair_shares_are_left_out():
    data = batch([episode(1.0, (4,), (5, 5), shared=1), episode(0.0, (4,), (6,), shared=1)])
    parted, whole = (Preferences(data, returns(data), Ipo(parted=parted)) for parted in (True, False))
    assert parted.taught.tolist() == [False, False, True, True, False, False, True]
    assert whole.taught.all()


def test_kto_compares_with_the_group_and_mismatches_answers():
    data = batch([episode(1.0, (4,)), episode(0.2, (5, 5))], [episode(0.0, (6,), success=True)])
    found = Preferences(data, returns(data), Kto())
    assert found.desirable.tolist() == [True, False, True]
    others = mismatched(data)
    assert [group.trajectories[0].turns[0].response_ids for group in others] == [(6,), (4,), (5, 5)]
    assert all(group.trajectories[0].turns[0].prompt_ids == (1, 2) for group in others)


def test_kto_leaves_out_groups_whose_returns_are_equal():
    """Otherwise it would unlearn what every member solves."""
    solved = [episode(1.0, (4,)), episode(1.0, (5, 5))]
    found = Preferences(batch(solved, [episode(1.0, (6,)), episode(0.0, (7,))]), np.array([1.0, 1.0, 1.0, 0.0]), Kto())
    assert found.pairs == [(2, 2), (3, 3)]
    assert found.desirable.tolist() == [True, False]


@pytest.mark.parametrize("settings", [
    ["algorithm.name=dpo"], ["algorithm=dpo", "kl.name=loss"], ["algorithm=dpo", "algorithm.whiten=true"],
    ["algorithm=dpo", "loss.entropy=0.1"], ["algorithm=kto", "algorithm.pairs=all"], ["algorithm.name=imitation"],
    ["algorithm=dpo", "correction.name=tis"], ["algorithm=dpo", "optimizer.minibatch_sequences=4"],
])  # fmt: skip
def test_settings_that_exclude_preferences_are_refused(settings):
    with pytest.raises(UsageError):
        load_config("sokoban", settings)
