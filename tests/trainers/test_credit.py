"""Rewards become advantages of response tokens: each algorithm against its own function, however episodes went."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from rollenv import UsageError
from rollenv.rollout.types import Group, Task, Trajectory, Turn
from rollenv.trainers import advantages as adv
from rollenv.trainers import credit, losses
from rollenv.trainers.config.algorithms import (
    Empg,
    Gigpo,
    Grpo,
    Hgpo,
    MaxRl,
    MtGrpo,
    Ppo,
    Rebn,
    Reinforce,
    ReinforcePlusPlus,
    Rloo,
    StepReinforce,
)
from rollenv.trainers.config.rewards import RewardsConfig
from rollenv.trainers.experience import Experience, experience, micro_batches, minibatches

TASK = Task("test:Any-v0", 0)
LIMIT = 4


def episode(rng: random.Random, sizes: list[int], *, status="terminated", split=False) -> Trajectory:
    """Turns with so many response tokens; prompts continue each other, or with ``split`` half of them do not."""
    seen: tuple[int, ...] = (1, 2)
    turns = []
    for number, size in enumerate(sizes):
        if split and number % 2:
            seen = (9, number)
        drawn = tuple(rng.choices(range(20), k=size))
        turn = Turn(seen, drawn, tuple(-rng.random() for _ in drawn), rng.choice([0.0, 0.5, 1.0, -0.1]), "", "")
        turn.state_key, turn.valid = rng.choice("xyz"), rng.random() < 0.7
        turn.finish = "length" if size == LIMIT else "stop"
        turns.append(turn)
        seen = (*seen, *drawn, 3)
    return Trajectory(TASK, turns, status, success=rng.random() < 0.5)


def batch(name: str) -> list[Group]:
    rng = random.Random(name)
    even = [[2, 3], [1, 4, 2], [3], [4, 4, 4, 1]]
    if name == "one group":
        members = [even]
    elif name == "singletons":
        members = [[sizes] for sizes in even]
    elif name == "no turns":
        members = [[[], [1, 2]], [[], []], [[3], []]]
    elif name == "no tokens":
        members = [[[0, 2, 0], [1, 0, 2, 0], [0, 0]], [[3, 0, 0, 1], [2]]]
    else:
        members = [even, [[1], [1, 1], [2, 4]], [[3, 3], [4]]]
    groups = [
        Group(TASK, [episode(rng, sizes, split=name == "split") for sizes in group], i)
        for i, group in enumerate(members)
    ]
    if name == "failed":
        groups[0].trajectories[1].status = "failed"
        groups[2].trajectories[0].status = "cancelled"
        for trajectory in groups[1]:
            trajectory.status = "failed"
    return groups


NAMES = ["plain", "one group", "singletons", "no turns", "no tokens", "split", "failed"]


@pytest.fixture(params=[*((name, "turn") for name in NAMES), ("plain", "trajectory"), ("split", "trajectory")])
def played(request) -> tuple[list[Group], Experience]:
    groups = batch(request.param[0])
    return groups, experience(groups, request.param[1])


@pytest.fixture
def data(played) -> Experience:
    return played[1]


def shaped(data: Experience, **settings) -> credit.Shaped:
    return credit.Shaper(RewardsConfig(**settings), LIMIT)(data)


def assigned(data: Experience, algorithm, **settings) -> np.ndarray:
    credit.assign(data, shaped(data, **settings), algorithm)
    return data.columns["advantages"]


def drawn_turns(data: Experience) -> list[tuple[int, int, int]]:
    """(trajectory, turn among all, tokens), for turns that have any; told by the trajectories alone."""
    every = [(n, turn) for n, t in enumerate(data.trajectories) for turn in t.turns]
    return [(n, i, len(turn.response_ids)) for i, (n, turn) in enumerate(every) if turn.response_ids]


# -- experience --------------------------------------------------------------------------------------------------------


def test_every_drawn_token_is_there_once_with_its_turn_trajectory_and_group(played):
    groups, data = played
    complete = [(g, t) for g, group in enumerate(groups) for t in group if t.complete]
    assert [id(t) for t in data.trajectories] == [id(t) for _, t in complete]
    assert data.groups.tolist() == [g for g, _ in complete]
    tokens = [(p, n, g) for n, (g, t) in enumerate(complete) for turn in t.turns for p in turn.logprobs]
    assert data.columns["behavior"].tolist() == [p for p, _, _ in tokens]
    assert data.trajectory.tolist() == [n for _, n, _ in tokens]
    assert data.prompt.tolist() == [g for _, _, g in tokens]
    assert data.turn.tolist() == [i for _, i, size in drawn_turns(data) for _ in range(size)]
    assert np.diff(data.starts).tolist() == [int(s.mask.sum()) for s in data.samples]
    assert data.rows(list(range(len(data.samples)))).tolist() == list(range(len(data)))
    assert sum(data.first_of_turn) == len(drawn_turns(data))
    rows = by_trajectory(data, np.arange(len(data), dtype=float))
    assert [len(row) for row in rows] == [sum(len(turn.response_ids) for turn in t.turns) for _, t in complete]


def test_every_token_knows_its_turn_and_its_place_in_the_response(data):
    drawn = [t.turns for t in data.trajectories]
    numbers = [(i, p) for turns in drawn for i, turn in enumerate(turns) for p in range(len(turn.response_ids))]
    assert list(zip(data.turn_number.tolist(), data.position.tolist(), strict=True)) == numbers


def test_drift_counts_the_turns_that_are_not_in_the_samples_as_they_were_played(data):
    assert data.drift == 0
    turns = [turn for t in data.trajectories for turn in t.turns if turn.response_ids]
    first, last = turns[0], turns[-1]
    last.prompt_ids = (77, *last.prompt_ids)
    first.response_ids = (*first.response_ids[:-1], 99)
    assert data.drift == len({id(first), id(last)})


def test_a_batch_of_which_nothing_was_played_is_empty():
    for members in ([], [Trajectory(TASK, [], "failed")], [Trajectory(TASK, [], "terminated")]):
        assert len(experience([Group(TASK, members)], "turn")) == 0


# -- algorithms --------------------------------------------------------------------------------------------------------

ALGORITHMS = [
    (Grpo(), lambda r, s, d: adv.grpo(totals(r), d.groups)),
    (Grpo(normalize_std=False), lambda r, s, d: adv.grpo(totals(r), d.groups, std=False)),
    (Rloo(), lambda r, s, d: adv.rloo(totals(r), d.groups)),
    (Reinforce(), lambda r, s, d: totals(r)),
    (ReinforcePlusPlus(), lambda r, s, d: adv.reinforce_pp(totals(r), d.groups, lengths(d), baseline=True)),
    (ReinforcePlusPlus(baseline=False),
        lambda r, s, d: adv.reinforce_pp(totals(r), d.groups, lengths(d), baseline=False)),
    (MaxRl(), lambda r, s, d: adv.maxrl(totals(r), d.groups)),
    (Rebn(gamma=0.5), lambda r, s, d: adv.rebn(r, gamma=0.5)),
    (StepReinforce(gamma=0.5, mean="batch", std="none"),
        lambda r, s, d: adv.step_reinforce(r, d.groups, gamma=0.5, mean="batch", std="none")),
    (Gigpo(gamma=0.5, step_weight=2.0, statistics="rows"),
        lambda r, s, d: adv.gigpo(rewards_of(d), d.groups, states(d), gamma=0.5, step_weight=2.0, statistics="rows",
                                   penalties=s)),
    (Gigpo(similarity=0.5, normalize_std=False),
        lambda r, s, d: adv.gigpo(rewards_of(d), d.groups, states(d), std=False, similarity=0.5, penalties=s)),
    (MtGrpo(turn_weight=2.0), lambda r, s, d: adv.mt_grpo(r, d.groups, weight=2.0)),
    (Hgpo(history=1, alpha=0.5, base_group=True),
        lambda r, s, d: adv.hgpo(rewards_of(d), d.groups, states(d), gamma=0.95, history=1, alpha=0.5, base=True,
                                  penalties=s)),
]  # fmt: skip


def rewards_of(data):
    return [[turn.reward for turn in t.turns] for t in data.trajectories]


def fines(data):
    return [[0.0 if turn.valid else 0.25 for turn in t.turns] for t in data.trajectories]


def fined(data):
    return [[r - f for r, f in zip(*rows, strict=True)] for rows in zip(rewards_of(data), fines(data), strict=True)]


def totals(rewards):
    return np.array([math.fsum(row) for row in rewards])


def lengths(data):
    return [sum(len(turn.response_ids) for turn in t.turns) for t in data.trajectories]


def states(data):
    return [turn.state_key for t in data.trajectories for turn in t.turns]


@pytest.mark.combinations
@pytest.mark.parametrize(("algorithm", "expected"), ALGORITHMS, ids=lambda a: getattr(a, "name", ""))
def test_every_token_has_the_advantage_of_its_turn_or_trajectory(data, algorithm, expected):
    found = assigned(data, algorithm, invalid_penalty=0.25)
    values = expected(fined(data), fines(data), data)
    turns = sum(len(t.turns) for t in data.trajectories)
    of_turns = (
        values
        if len(values) == turns and algorithm.name in ("rebn", "step_reinforce", "gigpo", "hgpo", "mt_grpo")
        else (np.repeat(values, [len(t.turns) for t in data.trajectories]))
    )
    np.testing.assert_allclose(found, [of_turns[i] for _, i, size in drawn_turns(data) for _ in range(size)], atol=1e-9)


def test_empg_weighs_the_turns_that_were_drawn_by_their_mean_entropy(data):
    entropy = np.random.default_rng(0).random(len(data))
    credit.assign(data, shaped(data, invalid_penalty=0.25), Empg(scale=2.0, bonus=0.3), lambda: entropy)
    found = data.columns["advantages"]
    drawn = drawn_turns(data)
    starts = np.flatnonzero(data.first_of_turn)
    mean = [entropy[b : b + size].mean() for b, (_, _, size) in zip(starts, drawn, strict=True)]
    plain = adv.grpo(totals(fined(data)), data.groups)
    counts = [sum(owner == n for owner, _, _ in drawn) for n in range(len(data.trajectories))]
    expected = adv.empg([plain[n] for n, _, _ in drawn], mean, counts, scale=2.0, bonus=0.3)
    np.testing.assert_allclose(found, np.repeat(expected, [size for _, _, size in drawn]), atol=1e-9)


def test_advantages_are_whitened_then_cut(data):
    plain = assigned(data, Reinforce()).copy()
    np.testing.assert_allclose(assigned(data, Reinforce(whiten=True)), adv.whiten(plain))
    np.testing.assert_allclose(
        assigned(data, Reinforce(whiten=True, clip_advantage=0.3)), adv.whiten(plain).clip(-0.3, 0.3)
    )


# -- a critic ----------------------------------------------------------------------------------------------------------


def by_trajectory(data, values):
    """The numbers of response tokens, one list for each trajectory."""
    counts = np.bincount(data.trajectory, minlength=len(data.trajectories))
    return [part.tolist() for part in np.split(values, np.cumsum(counts)[:-1])]


def with_values(data: Experience) -> None:
    data.columns["values"] = np.random.default_rng(0).standard_normal(len(data))


def test_ppo_without_discount_and_trust_in_rewards_knows_the_return_that_is_left(data):
    """With lambda and gamma 1 a target is what was paid from here on, whichever turn was empty."""
    with_values(data)
    credit.assign(data, shaped(data), Ppo(gamma=1, lam=1))
    left = []
    for t in data.trajectories:
        paid = [turn.reward for turn in t.turns]
        there = [i for i, turn in enumerate(t.turns) if turn.response_ids]
        for place, i in enumerate(there):
            start = 0 if not place else i
            left += [math.fsum(paid[start:])] * len(t.turns[i].response_ids)
    np.testing.assert_allclose(data.columns["returns"], left, atol=1e-9)
    np.testing.assert_allclose(data.columns["advantages"], left - data.columns["values"], atol=1e-9)
    credit.assign(data, shaped(data), Ppo(credit="turn", turn_gamma=1, turn_lam=1))
    first = data.first_of_turn
    np.testing.assert_allclose(data.columns["returns"][first], np.array(left)[first], atol=1e-9)
    assert np.isnan(data.columns["returns"][~first]).all()


def test_ppo_by_turns_gives_all_tokens_of_a_turn_the_advantage_of_its_prompt():
    data = experience(batch("plain"), "trajectory")
    with_values(data)
    credit.assign(data, shaped(data, invalid_penalty=0.25), Ppo(credit="turn", turn_gamma=0.9, turn_lam=0.8))
    values = iter(data.columns["values"][data.first_of_turn])
    at = [[next(values) for _ in t.turns] for t in data.trajectories]
    gae = adv.turn_gae(fined(data), at, gamma=0.9, lam=0.8)
    sizes = [size for _, _, size in drawn_turns(data)]
    np.testing.assert_allclose(data.columns["advantages"], np.repeat(gae.advantages, sizes))


def test_ppo_bi_level_and_by_tokens_are_their_estimators():
    data = experience(batch("plain"), "turn")
    with_values(data)
    sizes = [[len(turn.response_ids) for turn in t.turns] for t in data.trajectories]
    values = by_trajectory(data, data.columns["values"])
    credit.assign(data, shaped(data), Ppo(credit="bi_level", gamma=0.9, lam=0.8, turn_gamma=0.7, turn_lam=0.6))
    gae = adv.bi_level_gae(rewards_of(data), values, sizes, gamma=0.7, lam=0.6, token_gamma=0.9, token_lam=0.8)
    np.testing.assert_allclose(data.columns["advantages"], gae.advantages)
    np.testing.assert_allclose(data.columns["returns"], gae.returns)
    credit.assign(data, shaped(data), Ppo(gamma=0.9, lam=0.8))
    of_tokens = [
        [x for r, n in zip(rewards, size, strict=True) for x in [*[0.0] * (n - 1), r]]
        for rewards, size in zip(rewards_of(data), sizes, strict=True)
    ]
    gae = adv.token_gae(of_tokens, values, gamma=0.9, lam=0.8)
    np.testing.assert_allclose(data.columns["advantages"], gae.advantages)


@pytest.mark.parametrize("kind", ["token", "turn", "bi_level"])
def test_what_a_limit_cut_off_counts_with_the_value_of_the_last_state(kind):
    data = experience(batch("plain"), "turn")
    with_values(data)
    algorithm = Ppo(credit=kind, gamma=0.9, lam=0.8, turn_gamma=0.7, turn_lam=0.6)
    credit.assign(data, shaped(data), algorithm)
    without = data.columns["returns"]
    credit.assign(data, replace(shaped(data), bootstrap=np.zeros(len(data.trajectories))), algorithm)
    np.testing.assert_array_equal(data.columns["returns"], without)
    valued = replace(shaped(data), bootstrap=np.eye(len(data.trajectories))[1] * 5.0)
    credit.assign(data, valued, algorithm)
    more = data.columns["returns"] - without
    assert not np.nan_to_num(more[data.trajectory != 1]).any(), "one that terminated expects nothing more"
    last = data.turn == data.turn[data.trajectory == 1].max()
    target = np.flatnonzero(last)[0 if kind == "turn" else -1]
    assert more[target] == pytest.approx(5 * (0.9 if kind == "token" else 0.7)), "gamma V of the state after it"


@pytest.mark.parametrize("kind", ["token", "turn", "bi_level"])
def test_ppo_takes_any_episodes(data, kind):
    with_values(data)
    credit.assign(data, shaped(data), Ppo(credit=kind))
    assert np.isfinite(data.columns["advantages"]).all()
    assert len(data.columns["returns"]) == len(data)


# -- a penalty in the rewards ------------------------------------------------------------------------------------------


def test_a_penalty_of_tokens_is_paid_by_trajectory_turn_or_token(data):
    rewards = shaped(data)
    rewards.kl = np.random.default_rng(0).random(len(data))
    paid = np.bincount(data.trajectory, rewards.kl, minlength=len(data.trajectories))
    credit.assign(data, rewards, Reinforce())
    left = totals(rewards_of(data)) - paid
    np.testing.assert_allclose(data.columns["advantages"], left[data.trajectory], atol=1e-9)
    with_values(data)
    credit.assign(data, rewards, Ppo(gamma=1, lam=1))
    starts = np.diff(data.trajectory, prepend=-1) != 0
    np.testing.assert_allclose(data.columns["returns"][starts], left[data.trajectory[starts]], atol=1e-9)


# -- shaping -----------------------------------------------------------------------------------------------------------


def returns(data, **settings):
    return totals(shaped(data, **settings).rewards)


@pytest.mark.parametrize("name", ["plain", "failed", "singletons"])
def test_every_key_of_rewards_does_what_it_says(name):
    data = experience(batch(name), "turn")
    before, played = totals(rewards_of(data)), [[turn.reward for turn in t.turns] for t in data.trajectories]
    np.testing.assert_allclose(returns(data, scale=3.0), 3 * before)
    np.testing.assert_allclose(returns(data, scale=3.0, shift=-1.0), 3 * before - 1)
    np.testing.assert_allclose(returns(data, clip=0.4), before.clip(-0.4, 0.4))
    np.testing.assert_allclose(returns(data, success_only=True), [t.success for t in data.trajectories])
    for mean in ("none", "group", "batch"):
        for std in ("none", "group", "batch"):
            expected = adv.normalize(before, data.groups, mean=mean, std=std)
            np.testing.assert_allclose(returns(data, mean=mean, std=std), expected, atol=1e-9)
    for t, row in zip(data.trajectories, shaped(data, overlong=2).rewards, strict=True):
        for turn, r in zip(t.turns, row, strict=True):
            assert r == pytest.approx(turn.reward - max(0, len(turn.response_ids) - 2) / 2)
    for t, row in zip(data.trajectories, shaped(data, invalid_penalty=0.7).penalties, strict=True):
        assert row == [0.0 if turn.valid else 0.7 for turn in t.turns]
    shift = shaped(data, shift=2.0).rewards
    assert [row[:-1] for row in shift] == [row[:-1] for row in played], "the last turn gets it"
    assert rewards_of(data) == played, "what was played stays as it was"


def test_running_moments_grow_with_every_batch():
    data = experience(batch("plain"), "turn")
    shaper = credit.Shaper(RewardsConfig(mean="running", std="running"), LIMIT)
    for count in (1, 2, 3):
        found = totals(shaper(data).rewards)
        assert shaper.running.count == count * len(data.trajectories)
    before = totals(rewards_of(data))
    np.testing.assert_allclose(found, (before - shaper.running.mean) / (shaper.running.std + 1e-6), atol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"mean": "running"}, {"clip": 1.0}, {"mean": "group", "std": "batch"}])
@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf"), 1e200])
def test_a_reward_that_is_no_number_is_reported_and_spoils_nothing(reward, settings):
    groups = batch("plain")
    groups[1].trajectories[0].turns[0].reward = reward
    for algorithm in (Grpo(), Gigpo(), Ppo(), Rebn()):
        data = experience(groups, "turn")
        with_values(data)
        shaper = credit.Shaper(RewardsConfig(**settings), LIMIT)
        with pytest.raises(UsageError, match="finite"):
            credit.assign(data, shaper(data), algorithm)
        assert shaper.running.count == 0
        assert "advantages" not in data.columns


@pytest.mark.parametrize("algorithm", [Grpo(), Rloo(), Reinforce(), Gigpo(), Hgpo(), MaxRl(), Rebn(), Ppo()])
def test_huge_rewards_stay_finite(algorithm):
    groups = batch("plain")
    groups[1].trajectories[0].turns[0].reward = 1e30
    data = experience(groups, "turn")
    with_values(data)
    assert np.isfinite(assigned(data, algorithm)).all()


def test_a_limit_holds_for_returns_and_leaves_no_huge_turn_behind():
    groups = batch("plain")
    groups[1].trajectories[1].turns[0].reward = 1e30
    data = experience(groups, "turn")
    rewards = shaped(data, clip=2.0).rewards
    assert totals(rewards) == pytest.approx(totals(rewards_of(data)).clip(-2, 2))
    assert max(abs(r) for row in rewards for r in row) <= 4


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["token", "sequence", "prompt"])
def test_weights_add_up_to_one_over_steps_and_micro_batches(data, kind):
    weights = losses.token_weights(kind, data.sequence, data.prompt)
    assert credit.with_trajectory_weights(data, RewardsConfig(), weights).sum() == pytest.approx(1)
    steps = minibatches(data, 2, random.Random(0))
    pieces = [piece for step in steps for piece in micro_batches(data, step, 7)]
    rows = np.concatenate([data.rows(piece) for piece in pieces])
    assert sorted(rows.tolist()) == list(range(len(data)))


def test_trajectories_weigh_by_length_and_difficulty():
    data = experience(batch("plain"), "turn")
    ones = np.ones(len(data))
    by_length = credit.with_trajectory_weights(data, RewardsConfig(length_weight=True), ones)
    np.testing.assert_allclose(by_length, adv.length_weights(lengths(data))[data.trajectory])
    by_task = credit.with_trajectory_weights(data, RewardsConfig(difficulty_weight=True), ones)
    share = {
        g: np.mean([t.success for t, h in zip(data.trajectories, data.groups, strict=True) if h == g])
        for g in data.groups
    }
    expected = adv.difficulty_weights([1 - share[g] for g in data.groups])[data.trajectory]
    np.testing.assert_allclose(by_task, expected)


def test_the_observation_is_the_anchor_where_no_state_is_named():
    turns = [
        Turn((), (), (), 0.0, "go", o, key) for o, key in (("a", ""), ("b", ""), ("a", ""), ("c", "s"), ("d", "s"))
    ]
    assert credit.anchor_keys(turns) == ["a", "b", "a", "s", "s"]
    assert credit.recurring(turns, [0] * 5) == 0.8
    assert credit.recurring(turns, [0, 0, 1, 1, 2]) == 0.0


# -- episodes that teach nothing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_repetition_and_gibberish_are_found_in_the_response_that_has_them(data, seed):
    rng, vocabulary = random.Random(seed), 20
    for turn in data.turns:
        turn.logprobs = tuple(rng.choice([0.0, -0.005, -0.02, -4.9, -5.1]) for _ in turn.response_ids)
    data.columns["behavior"] = np.array([p for turn in data.turns for p in turn.logprobs])
    least, rare = rng.randint(1, LIMIT), rng.randint(1, vocabulary - 1)
    found = credit.dropped(data, RewardsConfig(drop_repetition=least, drop_gibberish=rare), vocabulary)

    def repeats(turn: Turn) -> bool:
        return "s" * least in "".join("s" if p > math.log(0.99) else "-" for p in turn.logprobs)

    def is_gibberish(turn: Turn) -> bool:
        pairs = zip(turn.response_ids, turn.logprobs, strict=True)
        return any(i >= rare and p < -math.log(vocabulary) - 2 for i, p in pairs)

    assert list(found) == ["repetition", "gibberish"]
    assert found["repetition"].tolist() == [any(map(repeats, t.turns)) for t in data.trajectories]
    assert found["gibberish"].tolist() == [any(map(is_gibberish, t.turns)) for t in data.trajectories]
    assert credit.dropped(data, RewardsConfig(), vocabulary) == {}


def test_answers_at_a_limit_are_dropped_or_paid_for(data):
    cut = [any(turn.finish == "length" for turn in t.turns) for t in data.trajectories]
    failed = [not t.success for t in data.trajectories]
    both = [a and b for a, b in zip(cut, failed, strict=True)]
    for kind, expected in (("drop", cut), ("drop_failed", both)):
        found = credit.dropped(data, RewardsConfig(at_limit=kind), 20)
        assert {name: mask.tolist() for name, mask in found.items()} == {"truncated": expected}
    ends_at_limit = [
        bool(t.turns) and (t.status == "truncated" or t.turns[-1].finish == "length") for t in data.trajectories
    ]
    plain = credit.Shaper(RewardsConfig(), LIMIT)(data).rewards
    fined = credit.Shaper(RewardsConfig(at_limit=0.5), LIMIT)(data).rewards
    less = [sum(a) - sum(b) for a, b in zip(plain, fined, strict=True)]
    np.testing.assert_allclose(less, [0.5 * ends for ends in ends_at_limit])
