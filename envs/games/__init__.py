"""GEM's text games, written anew: the same ids, parameters and rewards."""

from __future__ import annotations


def register_games() -> None:
    """Register every id of this folder."""
