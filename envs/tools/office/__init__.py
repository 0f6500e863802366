"""Calendar, mail and contacts of an office, generated."""

from __future__ import annotations

from rollenv.envs.tools.generated.variants import HARDSHIPS, SIZES, register_suite


def register_tools() -> None:
    """Register ``tools:Office-v0`` and its variants."""
    register_suite("Office", "rollenv.envs.tools.office.env:OfficeEnv", {**SIZES, **HARDSHIPS})
