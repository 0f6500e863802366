"""Gymnasium's games as text: same dynamics and rewards, states that restore, experts that win."""

import gymnasium
import numpy as np
import pytest
from played import to_the_end

import rollenv
from rollenv import UsageError
from rollenv.envs.gym.text import value_iteration
from rollenv.envs.gym.toys import hand_value

IDS = [s.id for s in rollenv.list_envs("gym:")]


@pytest.mark.parametrize("env_id", IDS)
def test_dynamics_and_rewards_are_gymnasiums(env_id):
    """Step by step beside an untouched environment that is in the same state and draws the same numbers."""
    env = rollenv.make(env_id)
    beside = type(env.game)(**env.settings)
    for seed in range(5):
        env.reset(seed)
        beside.reset(seed=seed)
        beside.np_random.bit_generator.state = env.np_random.bit_generator.state
        for name in env.fields:
            setattr(beside, name, np.copy(x) if isinstance(x := getattr(env.game, name), np.ndarray) else x)
        if env_id.endswith("Blackjack-v1"):
            beside.player, beside.dealer = list(env.game.player), list(env.game.dealer)
        for _ in range(40):
            word = env.action_rng.choice(env.actions)
            _, reward, terminated, *_ = beside.step(env._game_action(env.actions.index(word)))
            result = env.step(f"\\boxed{{{word}}}")
            assert result[1:3] == (float(reward), bool(terminated))
            if terminated:
                break


@pytest.mark.parametrize("env_id", IDS)
def test_an_action_that_is_none_only_passes_the_turn(env_id):
    env = rollenv.make(env_id)
    env.reset(0)
    before = env.state_key()
    _, reward, terminated, truncated, info = env.step("\\boxed{jump}")
    assert (reward, terminated, truncated, info["valid"]) == (env.unwrapped.pass_reward, False, False, False)
    assert env.state_key() == before


def test_limits_truncate_and_success_is_the_games():
    env = rollenv.make("gym:CartPole-v1", max_turns=5)
    env.reset(0)
    results = [env.step(env.oracle_action()) for _ in range(5)]
    assert [r[2:4] for r in results] == [(False, False)] * 4 + [(False, True)]
    assert results[-1][4]["success"] is True
    env.reset(0)
    env.max_turns = 500
    while not (result := env.step("\\boxed{left}"))[2]:
        pass
    assert result[4]["success"] is False
    car = rollenv.make("gym:MountainCar-v0", max_turns=3)
    car.reset(0)
    assert [car.step("\\boxed{coast}") for _ in range(3)][-1][4]["success"] is False


def test_value_iteration_takes_the_long_way_round_a_cost():
    """Three states in a row; the short way costs 5, the long way twice 1."""
    table = {
        0: {0: [(1.0, 2, -5.0, True)], 1: [(1.0, 1, -1.0, False)]},
        1: {0: [(1.0, 2, -1.0, True)], 1: [(1.0, 0, -1.0, False)]},
        2: {0: [(1.0, 2, 0.0, True)], 1: [(1.0, 2, 0.0, True)]},
    }
    assert value_iteration(table)[:2] == (1, 0)


def test_taxi_reaches_gymnasiums_optimum():
    """Its mean return under the best policy is about 7.93 over its starts."""
    env = rollenv.make("gym:Taxi-v3")
    returns = []
    for seed in range(200):
        env.reset(seed)
        returns.append(sum(result[1] for result in to_the_end(env)))
    assert 7.5 < np.mean(returns) < 8.4


def test_frozen_lake_is_crossed_three_times_in_four():
    env = rollenv.make("gym:FrozenLake-v1")
    wins = 0
    for seed in range(300):
        env.reset(seed)
        wins += to_the_end(env)[-1][4]["success"]
    assert 0.66 < wins / 300 < 0.82


@pytest.mark.parametrize(
    ("cards", "value"), [([1, 1], (12, True)), ([10, 1], (21, True)), ([10, 5, 1], (16, False)), ([10, 9], (19, False))]
)
def test_hands_are_worth_what_gymnasium_says(cards, value):
    assert hand_value(cards) == value


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("gym:Taxi-v3", {"max_turns": 0}),
        ("gym:FrozenLake-v1", {"map_name": "5x5"}),
        ("gym:Pendulum-v1", {"torques": 1}),
        ("gym:Taxi-v3", {"weather": "fine"}),
    ],
)
def test_wrong_settings_are_refused(env_id, kwargs):
    with pytest.raises(UsageError):
        rollenv.make(env_id, **kwargs)


def test_settings_reach_gymnasium():
    dry = rollenv.make("gym:FrozenLake-v1", is_slippery=False)
    dry.reset(0)
    assert "slippery" not in dry.reset(0)[0]
    assert dry.step("\\boxed{right}")[0].endswith("row 0, column 1.")
    assert isinstance(dry.game, gymnasium.Env)
