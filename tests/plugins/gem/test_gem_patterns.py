"""Every pattern of code in gem_patterns/ runs with rollenv under GEM's name, and does with GEM itself."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from both import GEM, needs_gem

HERE = Path(__file__).parent
NAMES = [
    name
    for file in sorted((HERE / "gem_patterns").glob("*.py"))
    for name in re.findall(r"^@pattern\ndef (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
]


@functools.cache
def outcome(python: str, *flags: str) -> dict:
    """All patterns in one process: which ran, and the traceback of each that failed."""
    env = {**os.environ, "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    command = [python, str(HERE / "gem_patterns"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
def test_rollenv_runs_what_gems_users_write(name):
    found = outcome(sys.executable, "--shim")
    assert name in found["ran"]
    assert name not in found["failed"], found["failed"][name]


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_gem) for name in NAMES])
def test_gem_itself_runs_the_pattern(name):
    found = outcome(str(GEM))
    assert name not in found["failed"], found["failed"][name]


def test_there_are_patterns_enough():
    assert len(NAMES) == len(set(NAMES)) > 60


@pytest.mark.integration
@pytest.mark.skipif(not GEM.exists(), reason=f"needs gem-llm at {GEM}")
def test_the_table_of_gems_surface_is_that_of_both_packages():
    script = HERE.parents[2] / "benchmarks" / "gem_surface.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
