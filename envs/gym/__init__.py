"""Gymnasium's toy-text and classic-control environments as text."""

from __future__ import annotations

from typing import Any

from rollenv.core.registry import ABILITIES, register

_TOYS = "rollenv.envs.gym.toys"
_CONTROL = "rollenv.envs.gym.control"
_LAKES: dict[str, list[Any]] = {
    "map_name": ["4x4", "4x4", "8x8", "8x8"],
    "is_slippery": [False, True] * 2,
    "max_turns": [20, 100, 40, 200],
}


def register_family() -> None:
    """Register ``gym:*``; the names are Gymnasium's."""
    none: dict[str, list[Any]] = {}
    for name, entry_point, oracle_success, levels in (
        ("Taxi-v3", f"{_TOYS}:Taxi", 0.99, none),
        ("FrozenLake-v1", f"{_TOYS}:GymFrozenLake", 0.5, _LAKES),
        ("CliffWalking-v1", f"{_TOYS}:CliffWalking", 0.99, none),
        ("Blackjack-v1", f"{_TOYS}:Blackjack", 0.25, none),
        ("CartPole-v1", f"{_CONTROL}:CartPole", 0.99, {"max_turns": [50, 100, 200, 500]}),
        ("MountainCar-v0", f"{_CONTROL}:MountainCar", 0.99, none),
        ("Acrobot-v1", f"{_CONTROL}:Acrobot", 0.99, none),
        ("Pendulum-v1", f"{_CONTROL}:Pendulum", 0.99, none),
    ):
        register(f"gym:{name}", entry_point, abilities=ABILITIES, oracle_success=oracle_success, levels=levels)
    register(
        "gym:FrozenLake8x8-v1",
        f"{_TOYS}:GymFrozenLake",
        abilities=ABILITIES,
        oracle_success=0.6,
        levels=_LAKES,
        map_name="8x8",
        max_turns=200,
    )
