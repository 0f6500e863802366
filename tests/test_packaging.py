"""What an installed rollenv looks like."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAPPED = PROJECT["tool"]["setuptools"]["package-dir"]


def packages_on_disk() -> set[str]:
    """Every folder with an __init__.py below rollenv/ and the siblings mapped into it."""
    found = set()
    for name, folder in {"rollenv": "rollenv", **MAPPED}.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((name, *inner)))
    return found


def test_the_list_of_packages_is_complete():
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    data_only = {"rollenv.trainers.recipes"}
    assert listed - data_only == packages_on_disk() - data_only


@pytest.mark.slow
def test_the_wheel_is_one_package_and_works(tmp_path):
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"rollenv"}
    assert {"rollenv/report.html", "rollenv/py.typed", "rollenv/trainers/recipes/sokoban.toml"} <= set(names)
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    script = (
        "import rollenv; assert rollenv.__file__.startswith('site/') or '/site/' in rollenv.__file__, rollenv.__file__;"
        "env = rollenv.make('game:Sokoban-v0-easy'); env.reset(0);"
        "from rollenv.trainers.config import recipes; print(*recipes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(target)}, capture_output=True
    )
    assert b"sokoban" in done.stdout, done.stderr
