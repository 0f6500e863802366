"""A spreadsheet with formulas, generated."""

from __future__ import annotations

from rollenv.envs.tools.generated.variants import HARDSHIPS, SIZES, register_suite


def register_tools() -> None:
    """Register ``tools:Sheet-v0`` and its variants."""
    plain = {end: HARDSHIPS[end] for end in ("-errors", "-distractors", "-missing_parameters")}
    register_suite("Sheet", "rollenv.envs.tools.sheet.env:SheetEnv", {**SIZES, **plain})
