"""Agents: random, oracle, scripted, language models."""

from typing import TYPE_CHECKING

from rollenv.core.lazy import lazy_names

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

__getattr__, __dir__ = lazy_names(__name__)
