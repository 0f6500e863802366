"""What shells complete. Bash splits words at colons, so it is asked itself."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ENV = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
BASH = """
eval "$SCRIPT"
COMP_WORDS=(rollenv "$@"); COMP_CWORD=$#
_rollenv_completion rollenv
printf '%s\\n' "${COMPREPLY[@]}"
"""


@functools.cache
def script() -> str:
    """What a shell's start file evaluates."""
    asked = ENV | {"_ROLLENV_COMPLETE": "source_bash"}
    return subprocess.run(["rollenv"], env=asked, capture_output=True, text=True, timeout=60).stdout


def completed(*words: str) -> list[str]:
    command = ["bash", "--norc", "-c", BASH, "bash", *words]
    done = subprocess.run(command, env=ENV | {"SCRIPT": script()}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("check", "gym", ":", "Taxi-v3", "webshop", ":", "mini-e"), ["mini-easy"]),
        (("train", "webshop_p"), ["webshop_published"]),
    ],
)
def test_bash_gets_the_rest_of_an_id(words, found):
    assert completed(*words) == found


def test_other_shells_get_ids_with_a_line_about_each(rollenv_command, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "rollenv play game:Sokoban-v0-t")
    monkeypatch.setenv("_ROLLENV_COMPLETE", "complete_fish")
    shown = rollenv_command().stdout
    assert shown.split("\t")[0] == "game:Sokoban-v0-tiny"
    assert "Push every box" in shown
