"""Generated suites: ids with common variants and levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollenv.core.registry import ABILITIES, register

#: Levels of a curriculum: more records, more goals.
LEVELS: tuple[dict[str, Any], ...] = (
    {"size": "small", "goals": 1},
    {"size": "small", "goals": (1, 2)},
    {"size": "medium", "goals": (1, 3)},
    {"size": "large", "goals": (2, 4), "max_turns": 30},
)
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "-easy": {"size": "small", "goals": 1},
    "-hard": {"size": "large", "goals": (2, 4), "max_turns": 30},
    "-missing_functions": {"missing": "functions"},
    "-missing_parameters": {"missing": "parameters"},
    "-long_context": {"long_context": 12_000},
    "-errors": {"errors": 0.2, "max_turns": 40},
    "-policy": {"policy": True},
    "-distractors": {"distractors": 12},
    "-python": {"python": True},
}
#: Module, class and variants (besides sizes) of each suite.
SUITES = {
    "Files": ("files:FilesEnv", "missing_functions missing_parameters long_context errors policy distractors"),
    "Office": ("office:OfficeEnv", "missing_functions missing_parameters long_context errors policy distractors"),
    "SQL": ("database:SqlEnv", "missing_parameters errors policy distractors"),
    "Search": ("search:SearchEnv", "long_context errors distractors"),
    "Sheet": ("sheet:SheetEnv", "errors distractors missing_parameters python"),
    "Shop": ("shop:ShopEnv", "missing_functions missing_parameters long_context errors policy distractors"),
}


def register_tools() -> None:
    """Register ``tools:NAME-v0`` and its variants for every suite."""
    for name, (entry_point, variants) in SUITES.items():
        for end in ("", "-easy", "-hard", *(f"-{variant}" for variant in variants.split())):
            register(
                f"tools:{name}-v0{end}",
                f"rollenv.envs.tools.generated.{entry_point}",
                abilities=ABILITIES,
                levels=LEVELS,
                oracle_success=1.0,
                nondeterministic=end == "-python",  # programs can read the clock and draw random numbers
                **VARIANTS[end],
            )
