"""Other suites, brought in whole: reasoning-gym, TextArena, Gymnasium."""

from __future__ import annotations


def register_adapters() -> None:
    """Register every id of this folder."""
