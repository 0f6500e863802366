"""Sokoban and FrozenLake as ROLL plays them: up to ten moves, one in a turn."""

from __future__ import annotations

from rollenv.envs.game.grid import register_project


def register_family() -> None:
    """Register ``roll:*``."""
    register_project("roll", slippery=False, max_turns=10, actions_per_turn=1)
