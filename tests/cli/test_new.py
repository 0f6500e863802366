"""`rollenv new` writes a package that installs, is found, and passes its own tests."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rollenv.core.checker.checks import CHECKS


@pytest.mark.integration
def test_the_package_works_once_installed(tmp_path, rollenv_process):
    assert rollenv_process("new", "my-game").returncode == 0
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(tmp_path / "my-game")], check=True, capture_output=True)
    env = {**os.environ, "PYTHONPATH": str(site)}
    assert "my_game:MyGame-v0" in rollenv_process("list", "my_game", env=env).stdout
    checked = rollenv_process("check", "my_game:MyGame-v0", env=env)
    assert checked.returncode == 0, checked.stdout
    marks = checked.stdout.splitlines()[-2].split()[1:]
    unpromised = {name for name, mark in zip(CHECKS, marks, strict=True) if mark != "✓"}
    assert unpromised == {"indexed", "players"}, "it has no rows, and one player"
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, str(tmp_path / "my-game/tests")],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "2 passed" in tests.stdout, tests.stdout
    planned = rollenv_process("train", str(tmp_path / "my-game/train.toml"), "--dry-run", env=env)
    assert planned.returncode == 0, planned.stderr


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("name", ["Bad Name", "1st", "class", "rollenv", "numpy", "json", "../up"])
def test_bad_names_are_refused(name, rollenv_command, tmp_path):
    done = rollenv_command("new", name)
    assert done.returncode == 2
    assert "package" in done.stderr
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(rollenv_command, tmp_path):
    (tmp_path / "mine").mkdir()
    done = rollenv_command("new", "mine")
    assert done.returncode == 2
    assert "exists" in done.stderr


def test_a_place_that_cannot_be_written_is_one_line(rollenv_command, tmp_path):
    (tmp_path / "file").write_text("")
    done = rollenv_command("new", "my-game", "--in", "file")
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert len(done.stderr.splitlines()) == 1
