"""Ids of generated suites, with the variants and levels that they have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollenv.registry import ABILITIES, register

#: For a curriculum: more records, more to do.
LEVELS: tuple[dict[str, Any], ...] = (
    {"size": "small", "goals": 1},
    {"size": "small", "goals": (1, 2)},
    {"size": "medium", "goals": (1, 3)},
    {"size": "large", "goals": (2, 4), "max_turns": 30},
)
#: What every suite has.
SIZES: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "-easy": {"size": "small", "goals": 1},
    "-hard": {"size": "large", "goals": (2, 4), "max_turns": 30},
}
#: What suites have that refuse, ask and wait.
HARDSHIPS: Mapping[str, Mapping[str, Any]] = {
    "-missing_functions": {"missing": "functions"},
    "-missing_parameters": {"missing": "parameters"},
    "-long_context": {"long_context": 12_000},
    "-errors": {"errors": 0.2, "max_turns": 40},
    "-policy": {"policy": True},
    "-distractors": {"distractors": 12},
}


def register_suite(
    name: str, entry_point: str, variants: Mapping[str, Mapping[str, Any]], *, nondeterministic: bool = False
) -> None:
    """Register ``tools:NAME-v0`` and its variants.

    Args:
        name: such as ``Shop``.
        variants: for the end of each id, arguments of the constructor.
        nondeterministic: whether actions can reach the time or chance.
    """
    known: dict[str, Any] = {
        "abilities": ABILITIES,
        "levels": LEVELS,
        "oracle_success": 1.0,
        "nondeterministic": nondeterministic,
    }
    for end, kwargs in variants.items():
        register(f"tools:{name}-v0{end}", entry_point, **known, **kwargs)
