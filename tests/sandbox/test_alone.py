"""The sandbox needs nothing else of rollenv, which knows its errors."""

import subprocess
import sys

import pytest

from rollenv import sandbox

SCRIPT = """
import importlib, pkgutil, sys, types

package = types.ModuleType("rollenv")
package.__path__ = [{folder!r}]
sys.modules["rollenv"] = package
import rollenv.sandbox
from rollenv.sandbox import InvalidArgument, Sandbox
from rollenv.sandbox.errors import IsolationError

for module in pkgutil.walk_packages(rollenv.sandbox.__path__, "rollenv.sandbox."):
    if ".programs" not in module.name:
        importlib.import_module(module.name)
try:
    Sandbox.create("nowhere")
except InvalidArgument as error:
    print(error)
try:
    with Sandbox.create() as box:
        print(box.run_code("6 * 7").text)
except IsolationError:
    print("42")
print(sorted(name for name in sys.modules if name.startswith("rollenv.") and not name.startswith("rollenv.sandbox")))
"""


def test_it_is_imported_and_runs_where_rollenv_has_nothing_else(tmp_path):
    (tmp_path / "sandbox").symlink_to(sandbox.__path__[0])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(folder=str(tmp_path))], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    refused, answer, others = done.stdout.splitlines()
    assert "local, docker" in refused
    assert (answer, others) == ("42", "[]")


def test_its_errors_end_a_command_with_a_line(rollenv_command, monkeypatch):
    pytest.importorskip("docker", reason="the docker SDK is not installed")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    told = rollenv_command("serve", "--sandbox", "docker")
    assert (told.returncode, told.stderr.count("\n")) == (1, 1)
    assert told.stderr.startswith("error: Docker does not answer")
