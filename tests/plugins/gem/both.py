"""Runs a program written for GEM, under GEM itself and under rollenv."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
GEM = Path(__file__).parents[3] / ".bench" / "gem" / "bin" / "python"
#: Such tests compare with gem-llm from PyPI, in an environment of its own.
needs_gem = [
    pytest.mark.integration,
    pytest.mark.skipif(not GEM.exists(), reason=f"needs gem-llm in an environment of its own, at {GEM}"),
]
_SHIM = """import runpy, sys
from rollenv.plugins import gem
gem.install()
runpy.run_path(sys.argv[1], run_name='__main__')"""


def run(program: str, given: object = None, *, under_gem: bool, folder: Path, timeout: float = 300) -> object:
    """What the program printed last, as JSON; ``given`` is what it reads."""
    path = FOLDER / program
    command = [str(GEM), str(path)] if under_gem else [sys.executable, "-c", _SHIM, str(path)]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if under_gem:  # GEM runs whatever `python` it finds
        env["PATH"] = f"{GEM.parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, timeout=timeout, cwd=folder, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def run_both(program: str, given: object = None, *, folder: Path) -> tuple[object, object]:
    """What it printed under GEM, and under rollenv."""
    return run(program, given, under_gem=True, folder=folder), run(program, given, under_gem=False, folder=folder)
