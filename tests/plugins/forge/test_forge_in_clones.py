"""A clone may lie anywhere: a task is forged with a virtual environment below /tmp, in odd paths and behind a link."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from tiny_package import sdist

SANDBOX_TESTS = Path(__file__).parents[2] / "sandbox"
FORGE = """
import sys
from pathlib import Path
from rollenv.plugins.forge.check import check
from rollenv.plugins.forge.forge import forge
(result,) = forge([sys.argv[1]], Path(sys.argv[2]), count=1)
print(result.error or check(Path(sys.argv[2], result.tasks[0])))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder below /tmp, whatever TMPDIR says, that every user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rollenv-clone-", ignore_cleanup_errors=True) as path:
        os.chmod(path, 0o777)
        yield Path(path)


def make_environment(path: Path) -> None:
    """Make a virtual environment with a pytest of its own; the host imports all else from this environment."""
    venv.create(path, with_pip=False)
    (site,) = path.glob("lib/python*/site-packages")
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        distribution = metadata.distribution(name)
        for file in distribution.files or []:
            if file.parts[0] != ".." and "__pycache__" not in file.parts:
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(distribution.locate_file(file), site / file)
    ours = os.path.realpath(str(metadata.distribution("pytest").locate_file("")))
    (site / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n", encoding="utf-8")


@pytest.mark.integration
@pytest.mark.parametrize("user", ["root", "ordinary"])
@pytest.mark.parametrize("link", ["no link", "linked clone", "linked environment"])
def test_forge_a_task_in_a_clone_below_tmp(folder, link, user):
    if user == "root" and os.geteuid() != 0:
        pytest.skip("the tests are run by an ordinary user")
    clone = folder / "x y é" / "rollenv"
    if link == "linked environment":
        make_environment(folder / "other é" / "environment")
        clone.mkdir(parents=True)
        (clone / ".venv").symlink_to(folder / "other é" / "environment")
    else:
        make_environment(clone / ".venv")
    if link == "linked clone":
        (folder / "link").symlink_to(clone)
        clone = folder / "link"
    python = str(clone / ".venv/bin/python")
    other_user = [python, str(SANDBOX_TESTS / "as_user.py")] if user == "ordinary" and os.geteuid() == 0 else []
    command = [*other_user, python, "-c", FORGE, str(sdist(folder)), str(folder / "tasks")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HOME": str(folder)})
    assert done.stdout == "Rewards(nothing=0.0, solution=1.0)\n", (done.stdout + done.stderr)[-2000:]
