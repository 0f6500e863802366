"""Games of several agents, and each of them as seen from one seat."""

from __future__ import annotations

from rollenv.envs.multiagent.env import MultiAgentEnv, MultiStep
from rollenv.envs.multiagent.seat import Seat
from rollenv.envs.multiagent.selector import AgentSelector
from rollenv.registry import ABILITIES, register

__all__ = ["AgentSelector", "MultiAgentEnv", "MultiStep", "Seat", "register_multiagent"]


def register_multiagent() -> None:
    """Register every id of this folder."""
    entry_point = "rollenv.envs.multiagent.nim:NimSeat"
    register("multi:Nim-v0", entry_point, abilities=ABILITIES, players=2, opponent="random")
    register("multi:Nim-v0-expert", entry_point, abilities=ABILITIES, players=2, opponent="expert")
    # three can gang up: nobody can force a win
    register("multi:Nim-v0-3p", entry_point, abilities=ABILITIES, oracle_success=0.5, players=3, opponent="random")
