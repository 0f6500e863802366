"""A spreadsheet with formulas, generated."""

from __future__ import annotations

from rollenv.envs.tools.generated.variants import HARDSHIPS, SIZES, register_suite

_ENV = "rollenv.envs.tools.sheet.env:SheetEnv"


def register_tools() -> None:
    """Register ``tools:Sheet-v0`` and its variants."""
    plain = {end: HARDSHIPS[end] for end in ("-errors", "-distractors", "-missing_parameters")}
    register_suite("Sheet", _ENV, {**SIZES, **plain})
    register_suite("Sheet", _ENV, {"-python": {"python": True}}, nondeterministic=True)
