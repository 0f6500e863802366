"""The package of the page "Extend" is found once it is installed with pip, and gone once it is uninstalled."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "extend.md"
#: Prints what of the package is there: routes of a server, a harness, trackers that recipes may name, suites, dialects,
#: calls.
FOUND = """
import json, rollenv
from rollenv.agents.gateway.dialects import dialects
from rollenv.agents.gateway.messages import ModelAnswer
from rollenv.agents.harness import find_harness, harnesses, program
from rollenv.bench.suites import suites
from rollenv.core.tools.calls import find_calls
from rollenv.serve.protocols import protocols, routes_of
from rollenv.trainers.config.run import TrackersConfig
from rollenv.trainers.tracking import trackers_of

def tracker():
    try:
        return [type(each).__name__ for each in trackers_of(TrackersConfig(use=["acme"]))]
    except ValueError:
        return []

def started():
    if "acme-agent" not in harnesses():
        return []
    told = {"base_url": "http://127.0.0.1:1", "key": "k", "model": "m", "instruction": "Go.", "seconds": 1}
    return program(find_harness("acme-agent"), **told)["command"][4:6]

def made():
    try:
        return rollenv.make("acme:hello", seed=1).reset()[0]
    except rollenv.UnknownEnv:
        return ""

def said():
    own = dialects().get("acme")
    return own and own.response_body(ModelAnswer("hi"), own.read({"say": "hi"}, None))

routes = [route.path for route in routes_of("acme")(None)] if "acme" in protocols() else []
found = [each.name for each in suites() if each.name == "acme"]
calls = [call.name for call in find_calls("<|call_begin|>look <- {}<|call_end|>")[0]]
print(json.dumps([made(), routes, started(), tracker(), found, said(), calls]))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python in a virtual environment that sees this one's packages, so that pip changes only the new one."""
    folder = tmp_path_factory.mktemp("outside")
    venv.create(folder / "venv")
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (site / "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [str(folder / "venv" / "bin" / Path(sys.executable).name), *args]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True)

    return run


def write_package(folder: Path) -> None:
    text = PAGE.read_text()
    (folder / "acme").mkdir()
    (folder / "acme" / "__init__.py").write_text("")
    (folder / "pyproject.toml").write_text(re.findall(r"```toml\n# pyproject.toml\n(.*?)```", text, re.DOTALL)[0])
    for name, code in re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(code)


@pytest.mark.slow
def test_a_package_adds_its_parts_and_takes_them_with_it(python, tmp_path):
    write_package(tmp_path)
    installed = python("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", str(tmp_path))
    assert installed.returncode == 0, installed.stderr
    found = python("-c", FOUND)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == [
        "Say hello.",
        ["/acme/ids"],
        ["acme_agent", "--model"],
        ["AcmeTracker"],
        ["acme"],
        {"said": "hi"},
        ["look"],
    ]
    played = python("-m", "rollenv", "acme", "hello")
    assert (played.returncode, played.stdout.strip()) == (0, "reward 1")

    assert python("-m", "pip", "uninstall", "--quiet", "--yes", "acme").returncode == 0
    assert json.loads(python("-c", FOUND).stdout) == ["", [], [], [], [], None, []]
    assert python("-m", "rollenv", "acme", "hello").returncode == 2
