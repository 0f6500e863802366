"""Questions whose answers are some documents apart, over a generated corpus."""

from __future__ import annotations

from rollenv.envs.tools.generated.variants import HARDSHIPS, SIZES, register_suite


def register_tools() -> None:
    """Register ``tools:Search-v0`` and its variants."""
    plain = {end: HARDSHIPS[end] for end in ("-long_context", "-errors", "-distractors")}
    register_suite("Search", "rollenv.envs.tools.search.env:SearchEnv", {**SIZES, **plain})
