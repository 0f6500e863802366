"""Harbor's own runner and its oracle, on machines of ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollenv.sandbox.machine import why_not

if sys.version_info < (3, 12):
    pytest.skip("Harbor needs Python 3.12", allow_module_level=True)
if why_not():
    pytest.skip(why_not(), allow_module_level=True)

ENVIRONMENT = "rollenv.plugins.adapters.harbor:MachineEnvironment"
SOLVE = "printf '%s, %s\\n' Hello \"$(cat name.txt)\" > greeting.txt\n"
#: The reward is 1 for the right greeting; how the machine is used is noted beside it.
TEST = """
mkdir -p /logs/verifier
if [ "$(cat /work/greeting.txt)" = "Hello, Ada" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
{ id -un; pwd; getent hosts example.org || echo no network; } > /logs/verifier/notes.txt
"""
TOML = """
schema_version = "1.4"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
network_mode = "no-network"
"""


def write_task(folder: Path, solve: str = SOLVE, dockerfile: str = "", toml: str = TOML) -> Path:
    files = {
        "instruction.md": "Greet the person in name.txt, in greeting.txt.\n",
        "task.toml": toml,
        "environment/Dockerfile": dockerfile or "FROM debian:bookworm\nWORKDIR /work\nCOPY name.txt .\n",
        "environment/name.txt": "Ada\n",
        "solution/solve.sh": f"#!/bin/bash\n{solve}",
        "tests/test.sh": f"#!/bin/bash\n{TEST}",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


#: Tasks of one run: what is changed in them, and what is told of them; None for a reward of 1.
TASKS = {
    "first": ({}, None),
    "leaves-a-process": ({"solve": f"{SOLVE}sleep 64 & disown\n"}, None),
    "breaks-in-the-build": ({"dockerfile": "FROM debian:bookworm\nRUN false\n"}, "false"),
    "has-an-unknown-image": ({"dockerfile": "FROM nobody/knows:this\n"}, "nobody/knows"),
    "hangs": ({"solve": "sleep 64", "toml": TOML.replace("60.0", "2.0", 1)}, "timed out"),
}


def run(tasks: Path, out: Path, agent: str = "oracle"):
    out.mkdir()
    command = [sys.executable, "-m", "harbor.cli.main", "run", "--path", tasks, "--agent", agent, "--env", ENVIRONMENT]
    command += ["--jobs-dir", out, "--job-name", "job", "--quiet", "--n-concurrent", "2"]
    settings = {"timeout": 300, "cwd": out, "env": os.environ | {"HOME": str(out)}}
    done = subprocess.run(command, capture_output=True, text=True, **settings)
    results = [json.loads(path.read_text()) for path in out.glob("job/*/result.json")]
    return done.stdout + done.stderr, {result["task_name"].rpartition("/")[2]: result for result in results}


@pytest.fixture(scope="module")
def oracles(tmp_path_factory):
    """What Harbor says of its oracle in every task, two at a time."""
    folder = tmp_path_factory.mktemp("oracle")
    write_task(folder / "tasks" / "wrong", solve="echo Hi > greeting.txt\n")
    for name, (changed, _) in TASKS.items():
        write_task(folder / "tasks" / name, **changed)
    _, results = run(folder / "tasks", folder / "out")
    return folder / "out", results


def reward(result):
    return result["verifier_result"]["rewards"]["reward"]


@pytest.mark.parametrize("name", [name for name, (_, told) in TASKS.items() if told is None])
def test_the_oracle_solves_the_task(name, oracles):
    out, results = oracles
    assert results[name]["exception_info"] is None
    assert reward(results[name]) == 1.0
    (notes,) = out.glob(f"job/{name}*/verifier/notes.txt")
    assert notes.read_text().splitlines() == ["root", "/work", "no network"]


@pytest.mark.parametrize("name", [name for name, (_, told) in TASKS.items() if told is not None])
def test_a_failure_is_reported(name, oracles):
    assert TASKS[name][1] in oracles[1][name]["exception_info"]["exception_message"]


def test_nothing_is_left(oracles):
    assert "sleep 64" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


def test_a_solution_that_is_wrong_has_no_reward(oracles):
    assert reward(oracles[1]["wrong"]) == 0.0


def test_a_task_without_a_dockerfile_is_refused_in_one_line(tmp_path):
    (write_task(tmp_path / "tasks" / "bare") / "environment" / "Dockerfile").unlink()
    said, _ = run(tmp_path / "tasks", tmp_path / "out")
    assert "has no Dockerfile: rollenv builds images from it" in " ".join(said.split())
