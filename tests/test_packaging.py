"""What an installed rollenv looks like."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINKED = ("agents", "envs", "sandbox", "trainers")


def test_a_path_is_its_import():
    """The folders beside rollenv/ are links in it, and nothing else is imported under their names."""
    for name in LINKED:
        link = ROOT / "rollenv" / name
        assert link.is_symlink()
        assert link.resolve() == ROOT / name
    import rollenv.agents.base
    import rollenv.envs.game.base

    assert Path(rollenv.agents.base.__file__).resolve() == ROOT / "agents/base.py"
    assert Path(rollenv.envs.game.base.__file__).resolve() == ROOT / "envs/game/base.py"


def _packaged():
    """Every file of the package, by its path in a wheel."""
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [line.split(maxsplit=3)[3] for line in listed.splitlines() if not line.startswith("120000")]  # no links
    for path in files:
        if path.startswith("rollenv/"):
            yield path
        elif path.partition("/")[0] in ("agents", "envs", "plugins", "sandbox", "trainers") and path[-3:] != ".md":
            yield f"rollenv/{path}"


@pytest.mark.smoke
def test_the_wheel_is_one_package_and_works(tmp_path):
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"rollenv"}
    assert set(_packaged()) <= set(names), "pyproject.toml's package-data lacks some"
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    script = (
        "import rollenv; assert rollenv.__file__.startswith('site/') or '/site/' in rollenv.__file__, rollenv.__file__;"
        "env = rollenv.make('game:Sokoban-v0-easy'); env.reset(0);"
        "assert rollenv.spec('tools:BFCL-v4-multiple').namespace == 'tools';"  # by an entry point
        "from rollenv.trainers.config import recipes; print(*recipes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(target)}, capture_output=True
    )
    assert b"sokoban" in done.stdout, done.stderr
