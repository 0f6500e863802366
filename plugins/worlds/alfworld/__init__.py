"""ALFWorld (arXiv 2010.03768): tasks in a household, in text; its rules and texts without TextWorld or a planner."""

from __future__ import annotations

from typing import Any

from rollenv.core.registry import ABILITIES, register
from rollenv.plugins.worlds.alfworld.needs import GAMES, TRIALS

_ENV = "rollenv.plugins.worlds.alfworld.env"
#: Levels of the generated rooms, easy ones first.
LEVELS: list[dict[str, Any]] = [
    {"tasks": ["pick_and_place_simple"], "receptacles": 4, "objects": 4},
    {"tasks": ["pick_and_place_simple", "look_at_obj_in_light"], "receptacles": 6, "objects": 8},
    {"tasks": [], "receptacles": 8, "objects": 12},
    {"tasks": [], "receptacles": None, "objects": None},
]


def register_family() -> None:
    """Register official games, the rooms rebuilt from ALFRED, and the generated ones."""
    register("alfworld:game", f"{_ENV}:AlfWorldGame", abilities=ABILITIES, needs=[GAMES], indexed=True)
    for name, split in (("train", "train"), ("seen", "valid_seen"), ("unseen", "valid_unseen")):
        register(
            f"alfworld:alfred-{name}",
            f"{_ENV}:AlfWorldRebuilt",
            abilities=ABILITIES,
            needs=[TRIALS],
            indexed=True,
            split=split,
        )
    register("alfworld:generated", f"{_ENV}:AlfWorldGenerated", abilities=ABILITIES, levels=LEVELS)
