"""The local backend, started by an ordinary user instead of root: the same tests once more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("file", ["test_abuse.py", "test_sandbox.py"])
def test_as_an_ordinary_user(file, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("these tests are already run by an ordinary user")
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        if folder.is_relative_to(tempfile.gettempdir()) and folder != Path(tempfile.gettempdir()):
            folder.chmod(folder.stat().st_mode | 0o055)
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "local and not docker"]
    command = [sys.executable, str(HERE / "as_user.py"), *pytest_command, f"--basetemp={tmp_path}/t", str(HERE / file)]
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=HERE.parents[1], timeout=400)
    shutil.rmtree(tmp_path / "t", ignore_errors=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
    assert "failed" not in done.stdout
    assert "skipped" not in done.stdout
