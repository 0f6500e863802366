"""Berkeley Function Calling Leaderboard, version 4: single turns judged by calls, conversations by states."""

from __future__ import annotations

from rollenv.core.needs import DataFiles, Package
from rollenv.core.registry import ABILITIES, register

#: Single-turn categories.
SINGLE = ("simple_python", "multiple", "parallel", "irrelevance")
MULTI = "multi_turn_base"

_SOURCE = "https://github.com/ShishirPatil/gorilla"
#: Without dependencies: their pins conflict with most other packages, and the parts used here do not need them.
_COMMAND = "pip install --no-deps bfcl-eval==2026.3.23 mpmath"
PACKAGES = (Package("bfcl-eval", module="bfcl_eval", command=_COMMAND), Package("mpmath", command=_COMMAND))


def need(category: str) -> DataFiles:
    """Return the need for the files of a category."""
    return DataFiles("bfcl", (f"BFCL_v4_{category}.json",), _SOURCE)


def register_tools() -> None:
    """Register an id for each category."""
    single, multi = "rollenv.plugins.suites.bfcl.single:BFCLEnv", "rollenv.plugins.suites.bfcl.multi:BFCLMultiTurnEnv"
    for category in SINGLE:
        needs = [need(category)]
        register(f"tools:BFCL-v4-{category}", single, abilities=ABILITIES, needs=needs, indexed=True, category=category)
    register(f"tools:BFCL-v4-{MULTI}", multi, abilities=ABILITIES, needs=[need(MULTI), *PACKAGES], indexed=True)
