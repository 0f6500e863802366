"""Runs each ``*_suite.py`` beside this file with the interpreter of the framework that it is about.

``make peers`` makes ``.bench/NAME`` for ``NAME_suite.py``; ``NAME_more_suite.py`` would share it.
"""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.early]
HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
SUITES = sorted(path.name for path in HERE.glob("*_suite.py"))


@pytest.mark.parametrize("suite", SUITES)
def test_the_suite_passes_with_the_real_framework(suite, tmp_path):
    python = ROOT / ".bench" / suite.partition("_")[0] / "bin" / "python"
    if not python.exists():
        pytest.skip(f"`make peers` puts the framework into {python.parents[1].relative_to(ROOT)}")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "rollenv").symlink_to(ROOT / "rollenv")
    run = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, HERE / suite],
        env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    print(run.stdout.strip().splitlines()[-1])
