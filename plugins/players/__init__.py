"""Games for several players from other projects, and meters of how well they are played."""

from __future__ import annotations

from rollenv.core.registry import ABILITIES, register


def register_family() -> None:
    """Register ``multi:Nim-v0-seats``."""
    register("multi:Nim-v0-seats", "rollenv.plugins.players.multi:NimTable", abilities=ABILITIES, players=2)
