"""Agents that need no model."""

import asyncio
import random

import pytest

import rollenv
from rollenv.agents.base import AgentFailed, NopAgent, OracleAgent, RandomAgent, noisy_expert
from rollenv.agents.chat import ChatAgent
from rollenv.rollout.evaluate import evaluate
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task


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


def _function(**about):
    return [{"type": "function", "function": {"name": "find", **about}}]


@pytest.mark.parametrize(
    "tools",
    [
        5, "find", {"find": 1}, [1], [{"function": None}], _function(description=3), _function(parameters=[1]),
        _function(parameters={"properties": {"a": 1}}), _function(parameters={"required": [None]}),
        _function(parameters={"properties": {"a": {"default": float("nan")}}}),
        _function(parameters={"properties": {"a": {"enum": {1, 2}}}}), _function(description="\ud800"),
    ],
)  # fmt: skip
def test_what_an_environment_offers_in_another_form_fails_its_episode(tools):
    session = ChatAgent("m", "http://127.0.0.1:9/v1", tools="env").start(None, 0)
    with pytest.raises(AgentFailed, match="tools"):
        asyncio.run(session.act("find it", {"tools": tools}))


@pytest.mark.parametrize(
    ("env_id", "kwargs", "status"),
    [
        ("game:Sokoban-v0-tiny", {}, "terminated"),
        ("shell:Logs-v0-easy", {}, "terminated"),
        ("shell:Logs-v0-easy", {"calls": "plain"}, "terminated"),
    ],
)
def test_doing_nothing_ends_with_nothing(env_id, kwargs, status):
    with RolloutManager(NopAgent()) as manager:
        ((one,),) = manager.collect([Task(env_id, 1, kwargs)])
    assert (one.status, one.success) == (status, False), one.error
