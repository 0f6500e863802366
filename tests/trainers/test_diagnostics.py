"""Diagnostics by their definitions, and alarms that go off once, when they should."""

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from rollenv.report.summary import CURVES
from rollenv.trainers import diagnostics as D
from rollenv.trainers.alarms import AlarmLimits, alarms

FLOATS = st.lists(st.floats(-5, 5), min_size=2, max_size=12)


@given(st.lists(st.tuples(st.floats(-5, 0), st.floats(-5, 0)), min_size=1, max_size=8))
def test_mismatch_by_its_definition(pairs):
    p, q = (torch.tensor([pair[i] for pair in pairs], dtype=torch.float64) for i in (0, 1))
    d = [a - b for a, b in pairs]
    rho = [math.exp(v) for v in d]
    got = D.mismatch(p, q)
    assert got["mismatch_kl"] == pytest.approx(
        statistics.mean(r - v - 1 for r, v in zip(rho, d, strict=True)), abs=1e-12
    )
    assert got["logprob_drift"] == pytest.approx(statistics.mean(map(abs, d)))
    assert got["logprob_drift_max"] == max(map(abs, d))
    ess = sum(rho) ** 2 / (len(d) * sum(r * r for r in rho))
    assert got["mismatch_ess"] == pytest.approx(ess)
    assert D.effective_sample_size(rho) == pytest.approx(ess)


def test_effective_sample_size_counts_equal_weights():
    assert D.effective_sample_size([3.0, 3.0]) == 1
    assert D.effective_sample_size(torch.tensor([1e30, 0, 0, 0])) == 0.25
    assert D.effective_sample_size([0.0, 0.0]) == D.effective_sample_size([]) == 0


@given(FLOATS, st.floats(0.1, 3))
def test_explained_variance_knows_perfect_constant_and_opposite_critics(returns, shift):
    r = np.array(returns)
    assume(r.var() > 1e-3)
    assert D.explained_variance(r + shift, r) == pytest.approx(1)
    assert D.explained_variance(np.full(len(r), shift), r) == pytest.approx(0, abs=1e-9)
    assert D.explained_variance(-r, r) == pytest.approx(-3)


@given(st.floats(-5, 5), st.integers(1, 9))
def test_returns_that_do_not_vary_explain_nothing_whatever_the_rounding(value, n):
    assert D.explained_variance(np.arange(n) * 1.0, np.full(n, value)) == 0


def test_quantiles_and_buckets_are_named_after_what_they_hold():
    assert D.quantiles("advantage", torch.arange(11)) == {
        "advantage/q00": 0, "advantage/q10": 1, "advantage/q50": 5, "advantage/q90": 9, "advantage/q100": 10,
    }  # fmt: skip
    entropy = torch.tensor([1.0, 3.0, 5.0, 7.0, 9.0], dtype=torch.bfloat16)
    assert D.by_bucket("entropy/turn", entropy, [0, 1, 2, 3, 40], D.TURNS) == {
        "entropy/turn/0": 1, "entropy/turn/1": 3, "entropy/turn/2-3": 6, "entropy/turn/32+": 9,
    }  # fmt: skip
    assert set(D.by_bucket("e", [1.0, 1.0, 1.0], torch.tensor([15, 16, 99999]), D.POSITIONS)) == {
        "e/0-15", "e/16-63", "e/16384+",
    }  # fmt: skip


def test_the_report_has_a_line_for_every_bucket_of_entropy():
    shown = {metric for _, _, metrics in CURVES for metric, _ in metrics}
    for name, ends in (("entropy/turn", D.TURNS), ("entropy/position", D.POSITIONS)):
        logged = D.by_bucket(name, [1.0] * (len(ends) + 1), [0, *ends], ends).keys()
        assert logged == {metric for metric in shown if metric.startswith(name)}


def test_nothing_to_measure_gives_no_numbers():
    assert D.mismatch([], []) == D.quantiles("x", []) == D.by_bucket("x", [], [], D.TURNS) == {}
    assert D.explained_variance([], []) == 0


def test_far_log_probabilities_stay_finite():
    got = D.mismatch(torch.tensor([0.0, -500.0]), torch.tensor([-500.0, 0.0]))
    assert all(math.isfinite(v) for v in got.values())


# -- alarms -----------------------------------------------------------------------------------------------------------

GOOD = {
    "reward": 0.4, "reward_std": 0.2, "informative_groups": 0.5, "entropy": 1.0, "ratio": 1.01, "drift": 0,
    "logprob_drift": 0.01, "loss": 0.1,
}  # fmt: skip
BAD = {
    "constant_reward": ({"reward_std": 0.0}, "0.4"),
    "no_informative_group": ({"informative_groups": 0.0}, "3 iterations"),
    "entropy_collapse": ({"entropy": 0.05}, "0.05 nats per token from 1"),
    "ratio_far": ({"ratio": 2.5}, "2.5"),
    "drift": ({"drift": 2}, "2 turns"),
    "logprob_drift": ({"logprob_drift": 0.7}, "0.7"),
    "nothing_played": ({"eval/turns": 0.0, "eval/failed": 0}, "no episode of eval had"),
    "not_finite": ({"loss": math.nan, "kl": math.inf}, "kl is inf, loss is nan"),
}


def rung(rows):
    return [[a.name for a in alarms(row, rows[:i])] for i, row in enumerate(rows)]


@pytest.mark.parametrize("name", BAD)
def test_a_lasting_cause_rings_once_and_says_what_and_what_to_do(name):
    change, numbers = BAD[name]
    rows = [GOOD] * 2 + [GOOD | change] * 30
    when = [i for i, names in enumerate(rung(rows)) for n in names if n == name]
    assert when == [4 if name in ("constant_reward", "no_informative_group") else 2]
    assert {n for names in rung(rows) for n in names} == {name}
    alarm = alarms(rows[when[0]], rows[: when[0]])[0]
    assert numbers in alarm.happened
    assert len(alarm.do) > 20
    assert str(alarm) == f"{name}: {alarm.happened}. {alarm.do}"


@pytest.mark.parametrize("name", BAD)
def test_a_cause_rings_again_only_after_it_was_gone_for_a_while(name):
    bad = [GOOD | BAD[name][0]] * 4
    for pause, times in ((5, 1), (12, 2)):
        rows = [GOOD, *bad, *[GOOD] * pause, *bad]
        assert [n for names in rung(rows) for n in names] == [name] * times


def test_a_good_run_is_quiet_and_rows_need_not_have_all_metrics():
    assert not any(rung([GOOD] * 20))
    assert not any(rung([{}, {"reward": 1.0}, {"eval/success": 0.5, "level": "easy"}] * 5))
    assert not any(
        rung([{"turns": 0.0, "failed": 8}, {"eval/turns": 0.0, "eval/failed": 2}, {"turns": 1.0, "failed": 0}])
    )
    assert rung([{"ratio": 0.1}, {"eval/success": 0.5}, {"ratio": 0.1}]) == [["ratio_far"], [], []]


def test_equal_rewards_for_an_iteration_or_two_are_chance():
    flat = GOOD | {"reward_std": 0.0, "informative_groups": 0.0}
    assert not any(rung([flat, flat, GOOD, flat, flat, GOOD]))


def test_a_new_number_that_is_not_finite_rings_while_another_lasts():
    first, second = GOOD | {"loss": math.nan}, GOOD | {"loss": math.nan, "kl": math.nan}
    rows = [GOOD, first, second, second]
    found = [[a.happened for a in alarms(row, rows[:i])] for i, row in enumerate(rows)]
    assert found == [[], ["loss is nan"], ["kl is nan"], []]


def test_numbers_of_any_kind_are_read_and_what_is_none_is_passed_over():
    rows = [GOOD, GOOD | {"loss": np.float32("inf")}, GOOD | {"ratio": None, "entropy": "low", "drift": np.int64(1)}]
    assert rung(rows) == [[], ["not_finite"], ["drift"]]


def test_equal_rewards_are_one_cause():
    rows = [GOOD | {"reward_std": 0.0, "informative_groups": 0.0}] * 5
    assert rung(rows) == [[], [], ["constant_reward"], [], []]


def test_alarms_change_nothing_and_follow_their_limits():
    rows = [dict(GOOD), dict(GOOD)]
    alarms(rows[1], rows[:1])
    assert rows == [GOOD, GOOD]
    assert [a.name for a in alarms(GOOD, [], AlarmLimits(ratio=1.001))] == ["ratio_far"]
