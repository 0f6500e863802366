"""Sokoban and FrozenLake as RAGEN plays them: up to ten moves, several in a turn."""

from __future__ import annotations

from rollenv.envs.game.grid import register_project


def register_family() -> None:
    """Register ``ragen:*``."""
    register_project("ragen", slippery=True, max_turns=5, actions_per_turn=5)
