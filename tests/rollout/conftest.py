"""The environment of ``troubled.py``."""

from __future__ import annotations

import pytest
import troubled

import rollenv
from rollenv.core import registry


@pytest.fixture(scope="module", autouse=True)
def _troubled():
    """It is known in every file, and what a file registers is gone after it."""
    rollenv.list_envs()
    before, registry.ENV_REGISTRY = registry.ENV_REGISTRY, dict(registry.ENV_REGISTRY)
    rollenv.register(troubled.ID, "troubled:Troubled", abilities=["random_action", "state_key"])
    yield
    registry.ENV_REGISTRY = before
