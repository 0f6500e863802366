"""Agents by the names that commands and recipes take."""

from __future__ import annotations

import os
from pathlib import Path

from rollenv.agents.base import Agent, ConstantAgent, NopAgent, OracleAgent, RandomAgent
from rollenv.agents.scripted import ReplayAgent
from rollenv.core.errors import UsageError
from rollenv.core.plugins import function_at


def agent_named(name: str) -> Agent | None:
    """Make an agent without a model from its name; None if the name is that of another kind.

    ``random``, ``oracle``, ``nop``, ``noisy:SHARE``, ``constant:TEXT``, ``replay:FILE`` or ``module:Class``.

    Raises:
        UsageError: what follows the colon is wrong.
    """
    kind, _, argument = name.partition(":")
    if name == "random":
        return RandomAgent()
    if name == "oracle":
        return OracleAgent()
    if name == "nop":
        return NopAgent()
    if kind == "noisy":
        return OracleAgent(_share(argument))
    if kind == "constant":
        return ConstantAgent(argument)
    if kind == "replay" and argument:
        return ReplayAgent.load(Path(os.path.expanduser(argument)))
    if argument and kind not in ("chat", "local", "vllm", "harness"):
        agent: Agent = function_at(name, "the agent")()
        if not hasattr(agent, "start"):
            raise UsageError(
                f"the agent {name!r} is {type(agent).__name__}, which has no start(): see rollenv.agents.Agent"
            )
        return agent
    return None


def opponent_named(name: str) -> Agent:
    """Make an agent from its name in a recipe: as :func:`agent_named`, ``local:FOLDER``, or ``chat:MODEL@URL``.

    Raises:
        UsageError: there is no such agent.
    """
    if found := agent_named(name):
        return found
    kind, _, argument = name.partition(":")
    if kind == "local" and argument:
        from rollenv.agents.local import LocalAgent  # not above: it needs torch

        return LocalAgent.load(os.path.expanduser(argument))
    model, _, url = argument.partition("@")
    if kind == "chat" and model and url:
        from rollenv.agents.chat import ChatAgent

        return ChatAgent(model, url)
    raise UsageError(
        f"there is no agent {name!r}: take random, oracle, nop, noisy:SHARE, constant:TEXT, replay:FILE, local:FOLDER, "
        "chat:MODEL@URL or module:Class"
    )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"noisy:SHARE needs a share between 0 and 1, got {text!r}")
    return share
