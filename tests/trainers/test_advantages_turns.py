"""Advantages of turns against the papers' formulas written out as loops, and against examples worked by hand."""

import difflib
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ragged_batches import cases, deviation, mean, score

from rollenv.core.errors import UsageError
from rollenv.trainers.advantages import (
    RunningMoments,
    discounted_returns,
    gigpo,
    grpo,
    hgpo,
    mt_grpo,
    rebn,
    step_reinforce,
)
from rollenv.trainers.advantages.anchors import anchors

ALL = {
    "discounted_returns": lambda r, g, s: discounted_returns(r, 0.9),
    "rebn": lambda r, g, s: rebn(r),
    "step_reinforce": lambda r, g, s: step_reinforce(r, g),
    "mt_grpo": lambda r, g, s: mt_grpo(r, g),
    "gigpo": gigpo,
    "gigpo_rows": lambda r, g, s: gigpo(r, g, s, statistics="rows"),
    "hgpo": hgpo,
    "hgpo_base": lambda r, g, s: hgpo(r, g, s, base=True),
}


def returns_of(case, gamma):
    return {(n, t): math.fsum(gamma**k * r for k, r in enumerate(case.rewards[n][t:])) for n, t in case.turns}


def episode_level(case, fines, std, statistics):
    """Of every turn, from equation 3 (trajectories), or from the published code's rows."""
    out = {}
    for n, t in case.turns:
        total, fine = math.fsum(case.rewards[n]), fines[n][t]
        group = [m for m in range(len(case.rewards)) if case.groups[m] == case.groups[n]]
        if statistics == "rows":
            rows = [math.fsum(case.rewards[m]) - fine for m in group for fine in fines[m]]
            alone = (total - fine) / (1 + 1e-6 if std else 1)
            out[n, t] = alone if len(rows) == 1 else score(total - fine, rows, std)
        else:
            totals = [math.fsum(case.rewards[m]) for m in group]
            scale = deviation(totals) + 1e-6 if std and deviation(totals) > 1e-6 else 1.0
            out[n, t] = score(total, totals, std) - fine / scale
    return out


@given(cases(), st.sampled_from([0.5, 0.95, 1.0]))
def test_discounted_returns_and_what_normalizes_them(case, gamma):
    returns = returns_of(case, gamma)
    assert discounted_returns(case.rewards, gamma) == pytest.approx(list(returns.values()))
    everywhere = [score(r, list(returns.values()), True) for r in returns.values()]
    assert rebn(case.rewards, gamma=gamma) == pytest.approx(everywhere, abs=1e-8)
    assert step_reinforce(case.rewards, case.groups, gamma=gamma, mean="batch", std="batch") == pytest.approx(
        everywhere
    )
    peers = {n: [r for (m, _), r in returns.items() if case.groups[m] == case.groups[n]] for n, _ in case.turns}
    expected = [score(r, peers[n], True) for (n, _), r in returns.items()]
    assert step_reinforce(case.rewards, case.groups, gamma=gamma) == pytest.approx(expected, abs=1e-8)


@given(
    cases(),
    st.booleans(),
    st.sampled_from([0.5, 0.95, 1.0]),
    st.sampled_from([0.0, 1.0, 0.3]),
    st.sampled_from(["trajectories", "rows"]),
    st.booleans(),
)
def test_gigpo_adds_the_score_among_equal_states_of_the_group(case, std, gamma, weight, statistics, penalized):
    fines = case.penalties if penalized else [[0.0] * len(r) for r in case.rewards]
    returns = {(n, t): r - fines[n][t] for (n, t), r in returns_of(case, gamma).items()}
    key = {turn: (case.groups[turn[0]], state) for turn, state in zip(case.turns, case.states, strict=True)}
    episode = episode_level(case, fines, std, statistics)
    expected = [
        episode[turn] + weight * score(returns[turn], [returns[o] for o in case.turns if key[o] == key[turn]], std)
        for turn in case.turns
    ]
    settings = {"gamma": gamma, "step_weight": weight, "std": std, "statistics": statistics}
    settings |= {"penalties": fines} if penalized else {}
    assert gigpo(case.rewards, case.groups, case.states, **settings) == pytest.approx(expected, abs=1e-7)


@given(cases(), st.booleans(), st.integers(0, 2), st.booleans(), st.sampled_from([0.0, 1.0, 2.0]))
def test_hgpo_weighs_the_scores_among_turns_of_the_same_history(case, std, history, base, alpha):
    returns = {(n, t): r - case.penalties[n][t] for (n, t), r in returns_of(case, 0.95).items()}
    state = dict(zip(case.turns, case.states, strict=True))
    expected = []
    for n, t in case.turns:
        found = [(0, episode_level(case, case.penalties, std, "rows")[n, t])] if base else []
        for k in range(1, history + 2):
            if t + 1 < k:
                continue
            mine = [state[n, i] for i in range(t - k + 1, t + 1)]
            same = [
                returns[m, u]
                for m, u in case.turns
                if case.groups[m] == case.groups[n]
                and u + 1 >= k
                and [state[m, i] for i in range(u - k + 1, u + 1)] == mine
            ]
            found.append((k, score(returns[n, t], same, std, ddof=0)))
        counted = [((k + 1) ** alpha, a) for k, a in found if abs(a) > 1e-6]
        expected.append(sum(w * a for w, a in counted) / (sum(w for w, _ in counted) + 1e-6))
    settings = {"std": std, "history": history, "base": base, "alpha": alpha, "penalties": case.penalties}
    assert hgpo(case.rewards, case.groups, case.states, **settings) == pytest.approx(expected, abs=1e-7)


def test_a_penalty_in_a_group_of_alike_returns_stays_a_penalty():
    # nobody won: dividing by a standard deviation of 0 + 1e-6 would make -0.1 into -100000
    lost = gigpo([[0.0, 0.0], [0.0]], [0, 0], ["a", "b", "c"], penalties=[[0.0, 0.1], [0.0]])
    assert lost == pytest.approx([0, -0.1, 0])
    # rows 0 -0.1 0: mean -1/30, variance (4 + 1 + 1) / 900 / 2 = 1 / 300
    rows = gigpo([[0.0, 0.0], [0.0]], [0, 0], ["a", "b", "c"], penalties=[[0.0, 0.1], [0.0]], statistics="rows")
    assert rows == pytest.approx(np.array([1, -2, 1]) / 30 * math.sqrt(300), abs=1e-4)


def test_near_equal_states_join_the_first_that_resembles_them():
    # ratios are 2 * matches / letters: abcd abce 6/8; abce abfe 6/8; abcd abfe 4/8: likeness is not passed on
    tasks, states = [0, 0, 0, 0, 1], ["abcd", "abce", "abfe", "abcd", "abcd"]
    assert anchors(tasks, states, similarity=0.75).tolist() == [0, 0, 1, 0, 2]
    assert anchors(tasks, states, similarity=0.76).tolist() == [0, 1, 2, 0, 3]
    assert anchors(tasks, states).tolist() == [0, 1, 2, 0, 3]
    # each is compared with firsts only: wbfe and abcd have 2/8; abfe and abcd 4/8, so it never meets wbfe
    assert anchors([0] * 3, ["abcd", "wbfe", "abfe"], similarity=0.5).tolist() == [0, 1, 0]
    # the ratio depends on the order: diet after tide has 4/8, tide after diet 2/8 (difflib's documentation)
    assert anchors([0, 0, 1, 1], ["tide", "diet", "diet", "tide"], similarity=0.5).tolist() == [0, 0, 1, 2]
    # abcd and abce together have returns 1 0, abfe has its own: only the pair is compared
    advantages = gigpo([[1.0], [0.0], [7.0]], [0, 0, 0], states[:3], std=False, similarity=0.75)
    episode = gigpo([[1.0], [0.0], [7.0]], [0, 0, 0], states[:3], std=False, step_weight=0.0)
    assert advantages - episode == pytest.approx([0.5, -0.5, 0])


@given(st.lists(st.text("ab", max_size=5), max_size=8), st.sampled_from([0.3, 0.6, 0.9, 1.0]))
def test_similar_states_are_found_greedily_in_order(states, similarity):
    firsts, labels = [], []
    for key in states:
        near = [i for i, f in enumerate(firsts) if difflib.SequenceMatcher(None, key, f).ratio() >= similarity]
        if not near:
            firsts.append(key)
        labels.append(near[0] if near else len(firsts) - 1)
    assert anchors([3] * len(states), states, similarity=similarity).tolist() == labels


def test_long_states_are_compared_as_difflib_does():
    # beyond 200 characters difflib ignores frequent ones on one side only, so the order of arguments is seen
    room = "\n".join("#####" + "." * i + "####" for i in range(30))
    states = [room, room.replace(".", "_", 9), room[::-1], room + "!", room]
    for similarity in (0.5, 0.9, 0.99):
        near = difflib.SequenceMatcher(None, states[1], states[0]).ratio() >= similarity
        assert (anchors([0, 0], states[:2], similarity=similarity).tolist() == [0, 0]) is near
        labels = anchors([0] * 5, states, similarity=similarity)
        assert labels[4] == labels[0]


@given(cases(), st.sampled_from(sorted(ALL)), st.randoms(use_true_random=False))
def test_names_of_groups_and_states_and_the_order_of_trajectories_do_not_matter(case, name, rng):
    before = ALL[name](case.rewards, case.groups, case.states)
    renamed = ALL[name](case.rewards, -3 * case.groups, ["state " + s for s in case.states])
    assert renamed == pytest.approx(before)
    order = rng.sample(range(len(case.rewards)), len(case.rewards))
    turns = [case.turns.index((n, t)) for n in order for t in range(len(case.rewards[n]))]
    moved = ALL[name]([case.rewards[n] for n in order], case.groups[order], [case.states[t] for t in turns])
    assert moved == pytest.approx(before[turns], abs=1e-7)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ALL)
def test_a_reward_that_is_not_finite_is_refused_with_its_trajectory(name, bad):
    with pytest.raises(UsageError, match=re.escape("reward of turn 1 of trajectory 2 is")):
        ALL[name]([[0.0, 1.0], [1.0], [0.0, bad, 0.0]], np.array([0, 0, 1]), list("abcabc"))


@pytest.mark.parametrize("estimate", [gigpo, hgpo])
def test_wrong_penalties_are_refused_with_their_trajectory(estimate):
    batch = [[0.0, 1.0], [1.0, 0.0]], [0, 0], list("abab")
    with pytest.raises(UsageError, match="turn 0 of trajectory 1"):
        estimate(*batch, penalties=[[0.0, 0.0], [math.nan, 0.0]])
    with pytest.raises(UsageError, match="Trajectory 1"):
        estimate(*batch, penalties=[[0.0, 0.1], [-0.1, 0.0]])
    with pytest.raises(UsageError, match="Trajectory 0"):
        estimate(*batch, penalties=[[0.0, 0.1, 0.0], [0.0]])


def test_unknown_settings_are_refused():
    with pytest.raises(UsageError, match="GiGPO"):
        gigpo([[1.0]], [0], ["a"], statistics="row")
    for similarity in (0.0, 1.5, math.nan):
        with pytest.raises(UsageError, match="similarity"):
            gigpo([[1.0]], [0], ["a"], similarity=similarity)
    with pytest.raises(UsageError, match="scope"):
        step_reinforce([[1.0]], [0], mean="task")


@pytest.mark.parametrize("name", ALL)
def test_an_empty_batch_and_trajectories_without_turns_are_no_error(name):
    assert ALL[name]([], np.array([], dtype=int), []).tolist() == []
    assert ALL[name]([[], []], np.array([0, 0]), []).tolist() == []
    assert len(ALL[name]([[], [1.0, 0.0]], np.array([0, 0]), ["a", "b"])) == 2


def test_step_reinforce_by_running_moments():
    seen = RunningMoments()
    seen.update([0.0, 2.0])  # mean 1, variance 2
    result = step_reinforce([[0.0, 3.0]], [0], gamma=1.0, mean="running", std="running", running=seen)
    assert result == pytest.approx([2 / math.sqrt(2)] * 2, abs=1e-5)
    assert mean(rebn([[1.0], [2.0], [4.0]])) == pytest.approx(0, abs=1e-9)


def test_mt_grpo_compares_last_rewards_and_those_of_turns_of_the_same_number():
    # Outcomes 1, 0, 0 of mean 1/3; first turns 0.5 and 0.2 of mean 0.35 (the third trajectory's only turn is its last)
    rewards, groups = [[0.5, 0.1, 1.0], [0.2, 0.0], [0.0]], [4, 4, 4]
    found = mt_grpo(rewards, groups, weight=0.5, std=False)
    assert found == pytest.approx([2 / 3 + 0.075, 2 / 3, 2 / 3, -1 / 3 - 0.075, -1 / 3, -1 / 3])
    # std of the outcomes sqrt(1/3), of first turns 0.15 sqrt(2); a second turn alone is compared with none
    found = mt_grpo(rewards, groups, weight=2.0)
    out, turn = 1 / math.sqrt(3), math.sqrt(2)
    assert found == pytest.approx([2 * out + turn, 2 * out, 2 * out, -out - turn, -out, -out], abs=1e-4)


@given(st.lists(st.lists(st.floats(-1, 1), max_size=4), min_size=1, max_size=6), st.booleans())
def test_mt_grpo_of_episodes_that_pay_at_their_end_only_is_grpo(rewards, std):
    rewards = [[0.0] * (len(row) - 1) + row[-1:] for row in rewards]
    groups = [i % 2 for i in range(len(rewards))]
    expected = grpo([sum(row) for row in rewards], groups, std=std)
    assert mt_grpo(rewards, groups, std=std) == pytest.approx(np.repeat(expected, [len(row) for row in rewards]))


def stop_or_go_on(pay_to_stop, pay_on_the_way, count=4096, turns=4):
    """Episodes in which a coin decides at every turn whether to stop; whoever goes on to the end gets 1.

    Returns:
        The rewards of turns, the states, and for each episode whether its first action was to go on.
    """
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(0.5, count), turns)
    ends = np.where(lengths < turns, pay_to_stop, 1.0)
    rewards = [[pay_on_the_way] * (n - 1) + [end] for n, end in zip(lengths.tolist(), ends.tolist(), strict=True)]
    return rewards, [f"turn {t}" for n in lengths for t in range(n)], lengths > 1


def worth_of_going_on(advantages, rewards, goes_on):
    """How much more the first action earns that goes on than the one that stops."""
    first = np.cumsum([0, *map(len, rewards)][:-1])
    return advantages[first][goes_on].mean() - advantages[first][~goes_on].mean()


@pytest.mark.parametrize("name", ALL)
def test_going_on_is_taught_where_it_pays_although_only_some_episodes_have_later_turns(name):
    """Going on pays 0.6 on average, stopping 0.2: the policy chooses how long episodes are, and none is biased by it.

    Rewards normalized per turn and then summed are: those who reach a turn are compared with each other alone, so what
    going on earns is subtracted from itself, and stopping at once looks better. No algorithm here does that.
    """
    rewards, states, goes_on = stop_or_go_on(0.2, 0.0)
    groups = [0] * len(rewards)
    assert worth_of_going_on(ALL[name](rewards, groups, states), rewards, goes_on) > 0

    numbers = np.array([int(state.removeprefix("turn ")) for state in states])
    flat = np.array([reward for row in rewards for reward in row])
    normalized = [
        (r - flat[numbers == n].mean()) / (flat[numbers == n].std() + 1e-6) for r, n in zip(flat, numbers, strict=True)
    ]
    ends = np.cumsum([len(row) for row in rewards])
    summed = np.concatenate([np.cumsum(part[::-1])[::-1] for part in np.split(np.array(normalized), ends[:-1])])
    assert worth_of_going_on(summed, rewards, goes_on) < 0


@pytest.mark.parametrize("name", ALL)
def test_rewards_on_the_way_are_seen_by_all_but_mt_grpo(name):
    """Only those who go on get the rewards of turns; MT-GRPO compares these with each other, and outcomes are equal."""
    rewards, states, goes_on = stop_or_go_on(1.0, 0.5)
    worth = worth_of_going_on(ALL[name](rewards, [0] * len(rewards), states), rewards, goes_on)
    assert (worth == pytest.approx(0, abs=1e-9)) if name == "mt_grpo" else worth > 0
