"""Success rates and their intervals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.agents.base import OracleAgent, RandomAgent
from rollenv.rollout.evaluate import evaluate, wilson_interval


@pytest.mark.parametrize(
    ("wins", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (429, 500, 0.8246, 0.8859)],
)
def test_wilson_interval_against_published_values(wins, n, low, high):
    assert wilson_interval(wins, n) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 1000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_share_and_narrows(case):
    wins, n = case
    low, high = wilson_interval(wins, n)
    assert 0 <= low <= wins / n <= high <= 1
    wide = wilson_interval(wins * 10, n * 10)
    assert wide[1] - wide[0] < high - low


def test_an_evaluation_counts_what_was_played():
    result = evaluate(OracleAgent(), "game:Sokoban-v0-easy", n=20, seed=5)
    assert (result.n, result.success, result.failed) == (20, 1.0, 0)
    assert result.reward == pytest.approx(1.0)
    assert [t.task.seed for t in result.trajectories] == list(range(5, 25))
    assert result.turns == sum(len(t.turns) for t in result.trajectories) / 20
    assert "trajectories" not in result.to_dict()
    assert evaluate(RandomAgent(), "game:Sokoban-v0-hard", n=20).success < 0.5
