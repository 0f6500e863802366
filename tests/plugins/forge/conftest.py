"""Tasks forged from the tiny package, once for all tests."""

from __future__ import annotations

import pytest
from tiny_package import sdist

from rollenv.plugins.forge.forge import forge


@pytest.fixture(scope="session")
def forged(tmp_path_factory):
    """Folder of the tasks, and what the forge said."""
    folder = tmp_path_factory.mktemp("forge")
    (result,) = forge([str(sdist(folder))], folder / "tasks", count=2)
    assert not result.error
    return folder, result


@pytest.fixture
def task(forged):
    """Folder of one of the tasks."""
    folder, result = forged
    return folder / "tasks" / result.tasks[0]
