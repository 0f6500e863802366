"""Tasks solved with tools."""

from __future__ import annotations

from rollenv.core.registry import ABILITIES, register

CALCULATOR = "rollenv.envs.tool.calculator:CalculatorTask"
_LEVELS = {
    "terms": [(2, 2), (2, 3), (3, 5), (4, 8)],
    "operands": [(0, 99), (100, 9_999), (100, 99_999), (1_000, 999_999)],
}


def register_family() -> None:
    """Register ``tool:*``."""
    register("tool:Calculator-v0", CALCULATOR, abilities=ABILITIES, levels=_LEVELS)
