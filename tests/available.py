"""The ids that can be made here, for tests that go through all of them."""

from __future__ import annotations

import pytest

import rollenv
from rollenv.cli.check import is_available

#: Suites with many ids; the rest is checked in a developer's quick run too.
LARGE = {"code", "eval", "math", "rg", "ta"}
IDS = [
    pytest.param(s.id, marks=pytest.mark.slow if s.namespace in LARGE else ())
    for s in rollenv.list_envs()
    if is_available(s)
]
