"""The public names of the packages that users import from."""

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["rollenv.agents", "rollenv.trainers", "rollenv.envs", "rollenv.core.tools"])
def test_public_names_are_importable_from_the_package(package):
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in set(module.__all__) - {"VLLMAgent"}:  # which needs vLLM
        assert getattr(module, name).__name__ == name
    with pytest.raises(AttributeError, match="'Nothing'"):
        _ = module.Nothing


def test_importing_the_packages_loads_no_model_library():
    code = "import sys, rollenv.agents, rollenv.trainers; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
