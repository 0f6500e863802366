"""What is missing is said at once, in a line, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(tmp_path, *args, blocked=(), env_var=""):
    """The command line where some modules cannot be imported; the last line says whether torch was."""
    script = (
        "import os, sys\n"
        f"for name in {list(blocked)}: sys.modules[name] = None\n"
        f"{env_var}\n"
        f"sys.argv = {['rollenv', *args]}\n"
        "from rollenv.cli.main import main\n"
        "try: main()\n"
        "finally: print('torch' if sys.modules.get('torch') else 'light')"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not list(tmp_path.iterdir())
    return done


OFFLINE = "os.environ.update(HF_HUB_OFFLINE='1', HF_HOME=os.path.abspath('nowhere'))"


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("name", ["missing", "./missing", "a/b/c"])
def test_a_model_that_is_nowhere_is_said_before_anything_large_is_imported(tmp_path, name):
    done = run(tmp_path, "eval", "game:Sokoban-v0-easy", "-a", f"local:{name}", "-o", "out")
    assert (done.returncode, done.stdout.strip()) == (2, "light")
    assert name.removeprefix("./") + "'" in done.stderr


@pytest.mark.slow
def test_a_model_of_the_hub_is_not_waited_for_offline(tmp_path):
    done = run(tmp_path, "eval", "game:Sokoban-v0-easy", "-a", "local:someone/none", "-o", "out", env_var=OFFLINE)
    assert (done.returncode, done.stdout.strip()) == (1, "light")
    assert "HF_HUB_OFFLINE" in done.stderr


def test_training_says_what_the_environment_needs_before_it_starts(tmp_path):
    done = run(tmp_path, "train", "webshop", blocked=["bm25s", "rapidfuzz"])
    assert done.returncode == 3
    assert "bm25s, rapidfuzz: pip install 'rollenv[webshop]'" in done.stderr
    assert "light" in done.stdout


@pytest.mark.slow
def test_training_says_that_its_model_cannot_be_had_before_it_starts(tmp_path):
    done = run(tmp_path, "train", "sokoban", "model.path=someone/none", env_var=OFFLINE)
    assert (done.returncode, done.stdout.strip()) == (1, "light")
    assert "'someone/none'" in done.stderr


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_training_without_its_extra_is_one_line(tmp_path, module):
    done = run(tmp_path, "train", "sokoban", blocked=[module])
    assert done.returncode == 3
    assert module in done.stderr
    assert "pip install 'rollenv[train]'" in done.stderr
