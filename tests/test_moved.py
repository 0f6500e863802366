"""Old names of modules are the modules at their new places."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import rollenv
from rollenv.moved import MOVED, new_name


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_name_is_the_same_module(old):
    assert importlib.import_module(old) is importlib.import_module(MOVED[old])


def test_modules_below_an_old_name():
    from rollenv.core.tools.function import FunctionTool
    from rollenv.tools.function import FunctionTool as Old  # type: ignore[import-untyped]

    assert Old is FunctionTool
    assert new_name("rollenv.toolsmith") is None


def test_an_old_name_after_a_mere_import_of_rollenv():
    code = "import rollenv; print(rollenv.errors.UsageError.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "rollenv.core.errors"


def test_python_runs_a_module_by_its_old_name():
    command = [sys.executable, "-m", "rollenv.tools.mcp_server", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


def test_a_name_that_never_was():
    with pytest.raises(AttributeError, match="nonsense"):
        rollenv.nonsense  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("rollenv.tools.nonsense")
