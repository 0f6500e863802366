"""Runs each ``*_suite.py`` beside this file with the interpreter of the framework that it is about.

``make peers`` makes ``.bench/NAME`` for ``NAME_suite.py``; ``NAME_agentdojo_suite.py`` shares it.
"""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.early]
HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
SUITES = sorted(path.name for path in HERE.glob("*_suite.py"))


#: The shortest real use of each framework: all that `make smoke` runs of its suite.
SMOKE = {
    "deepagents_suite.py": "test_an_agent_works_with_files_and_commands",
    "harbor_suite.py": "test_the_oracle_solves_the_task",
    "inspect_agentdojo_suite.py": "test_who_obeys_the_attacker_loses",
    "inspect_suite.py": "test_samples_have_sandboxes_of_their_own",
    "nemo_suite.py": "test_their_agent_plays_an_episode",
    "openenv_suite.py": "test_a_text_goes_into_the_only_field_and_comes_back",
    "skyrl_suite.py": "test_an_episode_is_the_same_as_ours",
    "smolagents_suite.py": "test_state_is_kept_between_steps_and_tools_run_inside",
    "tinker_suite.py": "test_a_group_is_played_as_by_hand_and_its_members_play_the_same_task",
    "trackers_suite.py": "test_mlflow_has_settings_curves_episodes_and_the_report_once",
    "trl_suite.py": "test_tokens_go_back_as_they_were_drawn",
    "verifiers_inwards_suite.py": "test_a_task_of_one_turn_is_scored_by_its_own_rewards",
    "verifiers_suite.py": "test_an_evaluation_plays_what_is_played_by_hand",
    "verl_suite.py": "test_an_episode_is_ours_and_its_tokens_are_those_that_were_sampled",
}


#: Each bridge's environment below .bench/, and a module that the bridge cannot do without.
NEEDED = {
    "deepagents": ("deepagents", "deepagents.backends.sandbox"),
    "harbor": ("harbor", "harbor.environments.base"),
    "inspect_ai": ("inspect", "inspect_ai.solver"),
    "nemo_gym": ("nemo", "resources_servers.gymnasium"),
    "skyrl": ("skyrl", "skyrl_gym.envs.base_text_env"),
    "smolagents": ("smolagents", "smolagents.remote_executors"),
    "tinker": ("tinker", "tinker_cookbook.rl.types"),
    "trl": ("trl", "datasets"),
    "verifiers": ("verifiers", "verifiers.v1"),
    "verl": ("verl", "verl.experimental.agent_loop.agent_loop"),
}


def run_in(peer, folder, *command):
    """Run Python in a framework's own environment, with rollenv beside it; return what it printed."""
    python = ROOT / ".bench" / peer / "bin" / "python"
    if not python.exists():
        pytest.skip(f"`make peers` puts the framework into {python.parents[1].relative_to(ROOT)}")
    tree = folder / "tree"
    tree.mkdir()
    (tree / "rollenv").symlink_to(ROOT / "rollenv")
    (tree / "rollenv.egg-info").symlink_to(ROOT / "rollenv.egg-info")  # the entry points of plug-ins
    env = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([python, *command], env=env, cwd=folder, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    return run.stdout


def run_suite(suite, folder, *options):
    """Run a suite in the framework's own interpreter; fail with its output if a test of it fails or none is run."""
    pytest_there = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull)
    said = run_in(suite.partition("_")[0], folder, *pytest_there, HERE / suite, *options)
    print(said.strip().splitlines()[-1])


@pytest.mark.parametrize("bridge", NEEDED)
def test_what_a_bridge_says_of_its_framework(bridge, tmp_path):
    peer, module = NEEDED[bridge]
    assert "passed" in run_in(peer, tmp_path, HERE / "versions.py", bridge, module)


@pytest.mark.parametrize("suite", SUITES)
def test_the_suite_passes_with_the_real_framework(suite, tmp_path):
    run_suite(suite, tmp_path)


@pytest.mark.smoke
@pytest.mark.parametrize("suite", SUITES)
def test_the_real_framework_plays(suite, tmp_path):
    run_suite(suite, tmp_path, "-k", SMOKE[suite])
