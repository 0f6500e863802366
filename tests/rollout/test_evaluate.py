"""Success rates and their intervals."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.agents.base import OracleAgent, RandomAgent
from rollenv.rollout.evaluate import evaluate, mean_interval, pass_all, pass_at, wilson_interval
from rollenv.rollout.manager import RolloutManager


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


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_and_pass_all_count_subsets(case):
    n, c, k = case
    episodes = [True] * c + [False] * (n - c)
    subsets = list(itertools.combinations(episodes, k))
    assert pass_at(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_all(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_an_interval_of_means_is_no_narrower_than_that_of_coins(values):
    mean, low, high = mean_interval(values)
    assert 0 <= low <= mean + 1e-12
    assert mean - 1e-12 <= high <= 1
    assert (low, high) == pytest.approx(wilson_interval(sum(values), len(values)))


def test_repeats_differ_only_in_the_agents_draws():
    result = evaluate(OracleAgent(0.5), "game:Sokoban-v0-easy", n=5, k=4)
    assert [(t.task.seed, t.member) for t in result.trajectories] == [(s, m) for s in range(5) for m in range(4)]
    for number in range(5):
        repeats = result.trajectories[4 * number : 4 * number + 4]
        assert len({t.turns[0].observation for t in repeats}) == 1
        assert len({tuple(turn.text for turn in t.turns) for t in repeats}) > 1
    assert result.pass_at[1][0] == pytest.approx(result.success)


def test_what_was_played_is_not_played_again_unless_it_failed():
    whole = evaluate(OracleAgent(0.5), "game:Sokoban-v0-easy", n=6, k=2)
    played = whole.trajectories[:5]
    lost, played[2] = played[2], type(played[2])(played[2].task, status="failed", member=played[2].member)
    seen = []
    with RolloutManager(OracleAgent(0.5)) as manager:
        rest = evaluate(
            OracleAgent(0.5), "game:Sokoban-v0-easy", n=6, k=2, manager=manager, played=played, watch=seen.append
        )
    assert len(seen) == 8
    assert rest.trajectories == whole.trajectories
    assert lost in seen
