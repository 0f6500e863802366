"""A company's SQLite database, generated."""

from __future__ import annotations

from rollenv.envs.tools.generated.variants import HARDSHIPS, SIZES, register_suite


def register_tools() -> None:
    """Register ``tools:SQL-v0`` and its variants."""
    plain = {end: HARDSHIPS[end] for end in ("-missing_parameters", "-errors", "-policy", "-distractors")}
    register_suite("SQL", "rollenv.envs.tools.database.env:SqlEnv", {**SIZES, **plain})
