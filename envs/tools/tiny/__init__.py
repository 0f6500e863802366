"""The smallest task with tools: look up a number, then act on it."""

from __future__ import annotations

from rollenv.core.registry import ABILITIES, register


def register_tools() -> None:
    """Register ``tools:Tiny-v0``."""
    register(
        "tools:Tiny-v0",
        "rollenv.envs.tools.tiny.env:TinyEnv",
        abilities=ABILITIES,
        oracle_success=1.0,
        levels={"records": [3, 4, 5, 8]},
    )
