"""Environments made of data: math, questions, code, and procedural tasks of the same kinds."""

from __future__ import annotations


def register_data() -> None:
    """Register every id of this folder."""
