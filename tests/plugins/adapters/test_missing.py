"""A bridge whose framework is not installed says so in one line."""

import importlib
import importlib.util
import subprocess
import sys

import pytest

from rollenv.core.errors import MissingExtra

PEERS = {"tinker": "tinker_cookbook", "skyrl": "skyrl_gym"} | {
    name: name for name in ["deepagents", "harbor", "inspect_ai", "nemo_gym", "smolagents", "trl", "verifiers", "verl"]
}


@pytest.mark.parametrize("name", PEERS)
def test_what_is_missing_and_how_to_install_it(name):
    if importlib.util.find_spec(PEERS[name]):
        pytest.skip(f"{PEERS[name]} is installed here")
    with pytest.raises(MissingExtra) as told:
        importlib.import_module(f"rollenv.plugins.adapters.{name}")
    assert str(told.value).startswith("this bridge needs ")
    assert "pip install" in str(told.value)
    assert "\n" not in str(told.value)


def test_the_command_that_writes_a_taskset_has_no_traceback():
    if importlib.util.find_spec("verifiers"):
        pytest.skip("verifiers is installed here")
    command = [sys.executable, "-m", "rollenv.plugins.adapters.verifiers", "folder", "game:Sokoban-v0-tiny"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: this bridge needs verifiers: pip install")
