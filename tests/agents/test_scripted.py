"""Agents that need no model."""

import random

import pytest

import rollenv
from rollenv.agents.base import OracleAgent, RandomAgent, noisy_expert
from rollenv.rollout.evaluate import evaluate


def test_the_noise_decides_how_often_the_expert_is_heard():
    env = rollenv.make("roll:FrozenLake-v0")
    env.reset(3)
    expert = env.oracle_action()
    same = sum(noisy_expert(env, 0.6, random.Random(i)) == expert for i in range(2000)) / 2000
    assert abs(same - (0.4 + 0.6 / 4)) < 0.05


def test_more_noise_wins_less():
    agents = (OracleAgent(), OracleAgent(0.5), OracleAgent(0.9), RandomAgent())
    success = [evaluate(agent, "game:Sokoban-v0-tiny", n=150).success for agent in agents]
    assert success[0] == 1.0
    assert success == sorted(success, reverse=True)


@pytest.mark.slow
@pytest.mark.integration
def test_a_stuck_expert_plays_on_at_random():
    assert evaluate(OracleAgent(0.7), "game:Sokoban-v0-hard", n=20).failed == 0
