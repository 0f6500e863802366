"""Task folders of Harbor (``harbor:PATH``) and Terminal-Bench 1 (``tb:PATH``) as environments, without Docker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollenv.core.env_spec import EnvSpec


def spec_of(env_id: str) -> EnvSpec:
    """Return the spec of a folder with one or many tasks."""
    from rollenv.plugins.suites.harbor.env import make_spec

    return make_spec(env_id)
