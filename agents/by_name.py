"""Agents by the names that commands and recipes take."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rollenv.agents.base import Agent, ConstantAgent, NopAgent, OracleAgent, RandomAgent
from rollenv.agents.scripted import ReplayAgent
from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.plugins import at_line, function_at

#: Agents whose names are a word.
_PLAIN: dict[str, Callable[[], Agent]] = {"random": RandomAgent, "oracle": OracleAgent, "nop": NopAgent}


def agent_named(name: str) -> Agent | None:
    """Make an agent without a model from its name; None if the name is that of another kind.

    ``random``, ``oracle``, ``nop``, ``noisy:SHARE``, ``constant:TEXT``, ``replay:FILE`` or ``module:Class``.

    Raises:
        UsageError: what follows the colon is wrong.
    """
    kind, _, argument = name.partition(":")
    if name in _PLAIN:
        return _PLAIN[name]()
    if kind == "noisy":
        return OracleAgent(_share(argument))
    if kind == "constant":
        return ConstantAgent(argument)
    if kind == "replay" and argument:
        return ReplayAgent.load(Path(os.path.expanduser(argument)))
    if argument and kind not in ("chat", "local", "vllm", "harness"):
        make = function_at(name, "the agent")
        try:
            agent: Agent = make()
        except RollenvError:
            raise
        except Exception as error:  # a constructor may raise anything
            raise UsageError(
                f"the agent {name!r} cannot be made: {at_line(error)}. Write a class, or a function that returns an "
                "agent, which takes no arguments"
            ) from error
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
    check_opponent(name)
    if found := agent_named(name):
        return found
    kind, _, argument = name.partition(":")
    if kind == "local":
        from rollenv.agents.local import LocalAgent  # not above: it needs torch

        return LocalAgent.load(os.path.expanduser(argument))
    from rollenv.agents.chat import ChatAgent

    return ChatAgent(*argument.split("@", 1))


def check_opponent(name: str) -> None:
    """Check a name of :func:`opponent_named` without making the agent.

    Raises:
        UsageError: it is no such name.
    """
    kind, colon, argument = name.partition(":")
    model, _, url = argument.partition("@")
    if kind == "chat":
        known = bool(model and url)
    else:
        known = bool(kind and argument) and kind not in ("vllm", "harness") if colon else name in _PLAIN
    if not known or "[" in kind:
        raise UsageError(
            f"there is no agent {name!r}: take random, oracle, nop, noisy:SHARE, constant:TEXT, replay:FILE, "
            "local:FOLDER, chat:MODEL@URL or module:Class"
        )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"noisy:SHARE needs a share between 0 and 1, got {text!r}")
    return share
