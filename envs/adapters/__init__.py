"""Other suites, brought in whole: reasoning-gym, TextArena, Gymnasium."""

from __future__ import annotations

from rollenv.envs.adapters.gym_text import register_gym
from rollenv.envs.adapters.rg import register_rg
from rollenv.envs.adapters.ta import register_ta
from rollenv.envs.multiagent import register_multiagent


def register_adapters() -> None:
    """Register every id of this folder."""
    register_rg()
    register_gym()
    register_ta()
    register_multiagent()
