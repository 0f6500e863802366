"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is read from, or left in, the cache of whoever runs the tests."""
    os.environ["ROLLENV_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def data() -> Callable[[str], Path]:
    """``data("boxoban/medium")`` is that folder or file of $ROLLENV_DATA; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        root = os.environ.get("ROLLENV_DATA")
        if not root:
            pytest.skip("ROLLENV_DATA does not name a folder of data sets")
        path = Path(root) / name
        if not path.exists():
            pytest.skip(f"$ROLLENV_DATA has no {name}")
        return path

    return find


@pytest.fixture
def rollenv_command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in an empty folder."""

    def run(*args: str, timeout: float = 120, **kwargs: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from rollenv.cli.main import main; main()", *args]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=timeout, **kwargs)  # type: ignore[call-overload,no-any-return]

    return run
