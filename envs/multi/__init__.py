"""Games of several agents, also as single-agent environments."""

from __future__ import annotations

from rollenv.core.registry import ABILITIES, register
from rollenv.envs.multi.env import MultiAgentEnv, MultiStep
from rollenv.envs.multi.seat import Seat
from rollenv.envs.multi.selector import AgentSelector

__all__ = ["AgentSelector", "MultiAgentEnv", "MultiStep", "Seat", "register_family"]

_LEVELS = {"num_piles": [1, 2, 3, 4], "max_pile": [8, 6, 7, 9], "max_take": [2, 3, 3, 4]}


def register_family() -> None:
    """Register ``multi:*``."""
    entry_point = "rollenv.envs.multi.nim:NimSeat"
    register("multi:Nim-v0", entry_point, abilities=ABILITIES, levels=_LEVELS, players=2, opponent="random")
    register("multi:Nim-v0-expert", entry_point, abilities=ABILITIES, levels=_LEVELS, players=2, opponent="expert")
    levels = {"terms": [(2, 2), (2, 3), (2, 4)]}
    propose = "rollenv.envs.multi.propose:Propose"
    register("multi:Propose-v0", propose, abilities=ABILITIES, levels=levels, oracle_success=0.0)
    register("multi:Propose-v0-digit", propose, abilities=ABILITIES, levels=levels, oracle_success=0.0, answers=(0, 9))
    # three can gang up, so no player can force a win
    register(
        "multi:Nim-v0-3p",
        entry_point,
        abilities=ABILITIES,
        oracle_success=0.5,
        levels=_LEVELS,
        players=3,
        opponent="random",
    )
