"""Agents: random, oracle, scripted, language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollenv.agents.base import (
        Action,
        Agent,
        AgentFailed,
        ConstantAgent,
        ContextFull,
        NopAgent,
        OracleAgent,
        RandomAgent,
        Session,
        Updatable,
    )
    from rollenv.agents.chat.agent import ChatAgent
    from rollenv.agents.chat.endpoint import Endpoint
    from rollenv.agents.engine_agent import EngineAgent
    from rollenv.agents.engines.base import Sampling
    from rollenv.agents.gateway.gateway import Gateway
    from rollenv.agents.harness.agent import HarnessAgent, TrainedHarnessAgent
    from rollenv.agents.local import LocalAgent
    from rollenv.agents.scripted import ReplayAgent
    from rollenv.agents.vllm import VLLMAgent

#: The module of each public name; it is imported when the name is first used.
_MODULES = {
    "Action": "rollenv.agents.base",
    "Agent": "rollenv.agents.base",
    "AgentFailed": "rollenv.agents.base",
    "ConstantAgent": "rollenv.agents.base",
    "ContextFull": "rollenv.agents.base",
    "NopAgent": "rollenv.agents.base",
    "OracleAgent": "rollenv.agents.base",
    "RandomAgent": "rollenv.agents.base",
    "Session": "rollenv.agents.base",
    "Updatable": "rollenv.agents.base",
    "ChatAgent": "rollenv.agents.chat.agent",
    "Endpoint": "rollenv.agents.chat.endpoint",
    "EngineAgent": "rollenv.agents.engine_agent",
    "Sampling": "rollenv.agents.engines.base",
    "Gateway": "rollenv.agents.gateway.gateway",
    "HarnessAgent": "rollenv.agents.harness.agent",
    "TrainedHarnessAgent": "rollenv.agents.harness.agent",
    "LocalAgent": "rollenv.agents.local",
    "ReplayAgent": "rollenv.agents.scripted",
    "VLLMAgent": "rollenv.agents.vllm",
}

__all__ = [
    "Action",
    "Agent",
    "AgentFailed",
    "ChatAgent",
    "ConstantAgent",
    "ContextFull",
    "Endpoint",
    "EngineAgent",
    "Gateway",
    "HarnessAgent",
    "LocalAgent",
    "NopAgent",
    "OracleAgent",
    "RandomAgent",
    "ReplayAgent",
    "Sampling",
    "Session",
    "TrainedHarnessAgent",
    "Updatable",
    "VLLMAgent",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
