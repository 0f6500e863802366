"""The environment families that come with rollenv."""

from __future__ import annotations

from typing import Any

from rollenv.envs.adapters import register_adapters
from rollenv.envs.data import register_data
from rollenv.envs.games import register_games
from rollenv.envs.webshop import register_webshop
from rollenv.registry import ABILITIES, register

_SOKOBAN = "rollenv.envs.sokoban:Sokoban"
_FROZEN_LAKE = "rollenv.envs.frozen_lake:FrozenLake"


def register_all() -> None:
    """Register every id; called once, when an id is first looked up."""
    _sokoban()
    _ragen_and_roll()
    register_games()
    register_data()
    register_adapters()
    register_webshop()


def _sokoban() -> None:
    """GEM's ids with GEM's parameters, and small variants."""
    for variant, room, boxes, turns in (
        ("easy", (6, 6), 2, 20),
        ("hard", (8, 8), 4, 50),
        ("random", None, None, None),
    ):
        register(
            f"game:Sokoban-v0-{variant}",
            _SOKOBAN,
            abilities=ABILITIES,
            dim_room=room,
            num_boxes=boxes,
            max_turns=turns,
        )
    register(
        "game:Sokoban-v0-tiny",
        _SOKOBAN,
        abilities=ABILITIES,
        dim_room=(6, 6),
        num_boxes=1,
        max_turns=15,
        observation="compact",
        action_format="bare",
    )


def _ragen_and_roll() -> None:
    """RAGEN's and ROLL's Sokoban and FrozenLake: up to ten moves, several to a turn in RAGEN."""
    for project, turns, moves in (("ragen", 5, 5), ("roll", 10, 1)):
        shared: dict[str, Any] = {
            "action_format": "answer",
            "rewards": project,
            "max_turns": turns,
            "actions_per_turn": moves,
            "max_actions": 10,
        }
        for name, room, boxes in (("Sokoban", (6, 6), 1), ("SokobanLarge", (8, 8), 2)):
            register(
                f"{project}:{name}-v0",
                _SOKOBAN,
                abilities=ABILITIES,
                dim_room=room,
                num_boxes=boxes,
                observation="dense",
                **shared,
            )
        register(
            f"{project}:FrozenLake-v0",
            _FROZEN_LAKE,
            abilities=ABILITIES,
            oracle_success=0.25 if project == "ragen" else 0.99,
            is_slippery=project == "ragen",
            **shared,
        )
