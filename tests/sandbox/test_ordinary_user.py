"""The local backend, started by an ordinary user instead of root: the same tests once more."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.integration
@pytest.mark.parametrize(
    "file", ["test_abuse.py", "test_sandbox.py", "test_everyday.py", "test_reports.py", "test_services.py"]
)
def test_as_an_ordinary_user(file):
    if os.geteuid() != 0:
        pytest.skip("these tests are already run by an ordinary user")
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "local and not docker"]
    with tempfile.TemporaryDirectory(prefix="rollenv-user-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o777)  # not below pytest's own folder, which each of its runs closes to others
        command = [sys.executable, str(HERE / "as_user.py"), *pytest_command, f"--basetemp={folder}/t"]
        env = {**os.environ, "HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*command, str(HERE / file)], capture_output=True, text=True, env=env, cwd=HERE.parents[1], timeout=400
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
    assert "failed" not in done.stdout
    assert "skipped" not in done.stdout
