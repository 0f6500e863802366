"""The smallest task with tools."""

from __future__ import annotations

import pytest

import rollenv
from rollenv.core.errors import UsageError


def play(env, seed, noise=0.0):
    observation, info = env.reset(seed)
    texts, briefs, rng = [observation], [info["brief"]], env.action_rng
    while True:
        action = env.sample_random_action() if rng.random() < noise else env.oracle_action()
        observation, _, terminated, truncated, info = env.step(action)
        texts.append(observation)
        briefs.append(info["brief"])
        if terminated or truncated:
            return texts, briefs, info["success"]


@pytest.mark.parametrize("calls", ["python", "json", "hermes", "native"])
@pytest.mark.parametrize("records", [3, 4, 5, 20])
def test_it_is_short_and_the_oracle_solves_it(calls, records):
    env = rollenv.make("tools:Tiny-v0", calls=calls, records=records)
    for seed in range(20):
        texts, briefs, success = play(env, seed)
        assert success
        assert len(texts[0]) < 350
        assert len(env.current.start) == records
        assert max(map(len, briefs)) < 60


def test_the_second_call_depends_on_the_answer_of_the_first():
    env = rollenv.make("tools:Tiny-v0")
    for seed in range(30):
        texts, _, _ = play(env, seed)
        _, ((_, arguments),), _ = env.current.plan
        assert str(arguments["id"]) not in texts[0]
        assert str(arguments["id"]) in texts[1]


def test_brief_observations_hold_the_request_and_the_last_answer():
    env = rollenv.make("tools:Tiny-v0", brief=True)
    texts, briefs, _ = play(env, 2)
    assert texts == briefs
    (number,) = [str(arguments["id"]) for move in env.current.plan[1:2] for _, arguments in move]
    assert texts[1] == f"{texts[0]} > {number}"


def test_noise_costs_success_and_chance_wins_nothing():
    env = rollenv.make("tools:Tiny-v0")
    won = [sum(play(env, seed, noise)[2] for seed in range(300)) for noise in (0.0, 0.1, 0.3, 0.5, 1.0)]
    assert won[0] == 300
    assert won == sorted(won, reverse=True)
    assert won[1] < 300
    assert won[3] < 200
    assert won[4] <= 3


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="records"):
        rollenv.make("tools:Tiny-v0", records=2)
