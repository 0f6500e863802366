"""Runs suites in an interpreter that has vLLM: its pins rarely agree with those of everything else."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.early]
ROOT = Path(__file__).parents[2]
SUITES = ("agents/vllm_suite.py", "agents/vllm_places_suite.py", "trainers/vllm_lora_suite.py")


@pytest.fixture
def interpreter():
    named = os.environ.get("ROLLENV_VLLM_PYTHON")
    python = Path(named) if named else ROOT / ".bench" / "vllm" / "bin" / "python"
    if not python.exists():
        if named:
            pytest.fail(f"ROLLENV_VLLM_PYTHON names {named}, which does not exist")
        pytest.skip("no interpreter with vLLM: set ROLLENV_VLLM_PYTHON, or make one at .bench/vllm")
    if " " in str(python):
        pytest.skip(f"torch's compiler takes no include paths with spaces, and vLLM compiles: {python}")
    return python


@pytest.fixture
def link_tree(tmp_path):
    """rollenv as it is imported, for an interpreter that it is not installed in."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "rollenv").symlink_to(ROOT / "rollenv")
    (tree / "rollenv.egg-info").symlink_to(ROOT / "rollenv.egg-info")  # the entry points of plug-ins
    return tree


def run_suite(suite, interpreter, link_tree, folder, *options):
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    alone = ["-p", "no:cacheprovider", "--noconftest", "-c", os.devnull]
    run = subprocess.run(
        [interpreter, "-m", "pytest", "-q", *alone, ROOT / "tests" / suite, *options],
        env=settings | os.environ | {"PYTHONPATH": str(link_tree), "PYTHONDONTWRITEBYTECODE": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]


@pytest.mark.parametrize("suite", SUITES)
def test_the_suite_passes_where_vllm_is(suite, interpreter, link_tree, tmp_path):
    run_suite(suite, interpreter, link_tree, tmp_path)


@pytest.mark.smoke
def test_vllm_draws_what_the_trainer_computes_and_plays(interpreter, link_tree, tmp_path):
    names = "test_the_sampler_and_the_trainer_agree or test_new_weights_show_in_the_next_token or test_the_agent_plays"
    run_suite("agents/vllm_suite.py", interpreter, link_tree, tmp_path, "-k", names)
