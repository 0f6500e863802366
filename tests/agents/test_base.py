"""Agents and sessions of users' own classes."""

import asyncio

from rollenv.agents.base import Agent, Session, member


class Plain:
    """Has what an agent must have, and no more."""

    def start(self, env, seed):
        return None


def test_a_plain_agent_and_session_have_the_defaults_of_the_protocols():
    kwargs = {"a": 1}
    assert member(Plain(), Agent, "version") is None
    assert asyncio.run(member(Plain(), Agent, "prepare")("any:Id-v0", kwargs)) is kwargs
    assert member(Plain(), Session, "replayable") is True
    assert member(Plain(), Session, "record")() == {}
    plain = Plain()
    plain.version = 3
    assert member(plain, Agent, "version") == 3
