"""Other projects' clients, unmodified and in environments of their own, against a real server."""

from __future__ import annotations

import subprocess

import pytest
from clients import ROOT, expected, run

ROCK = """
import os, rock
env = rock.make("game:Sokoban-v0-tiny")
observation, info = env.reset(seed=3)
print(repr(observation))
for action in os.environ["ACTIONS"].split("|"):
    observation, reward, terminated, truncated, info = env.step(action)
    print(repr((observation, reward, terminated, truncated)))
try:
    env.step("too late")
except Exception as error:
    assert "409" in str(error) and "over" in str(error), error
else:
    raise SystemExit("a step after the end was taken")
observation, info = env.reset()
env.close()
for wrong in ("game:Sokobam-v0", "", "rollenv+ws://localhost:1/x"):
    try:
        rock.make(wrong)
    except Exception as error:
        assert "HTTP error 4" in str(error), error
    else:
        raise SystemExit("it was made")
"""

OPENENV = """
import os
from openenv import GenericEnvClient
url = os.environ["URL"] + "/openenv/game:Sokoban-v0-tiny"
client = GenericEnvClient(base_url=url)
with client.sync() as env:
    result = env.reset(seed=3)
    print(repr(result.observation["text"]))
    for action in os.environ["ACTIONS"].split("|"):
        result = env.step({"action": action})
        seen = result.observation
        print(repr((seen["text"], result.reward, seen["terminated"], seen["truncated"])))
    assert result.done
    assert env.state()["step_count"] == len(os.environ["ACTIONS"].split("|"))
    try:
        env.step({"wrong": 1})
    except Exception as error:
        assert "VALIDATION" in str(error).upper(), error
    else:
        raise SystemExit("it was taken")
    assert env.reset(seed=4).done is False
"""


@pytest.mark.smoke
@pytest.mark.integration
def test_rock(server):
    seen, actions = expected(3)
    assert run("rock", ROCK, ROCK_BASE_URL=server.http, ACTIONS=actions) == seen


@pytest.mark.smoke
@pytest.mark.integration
def test_openenv(server):
    seen, actions = expected(3)
    assert run("openenv", OPENENV, URL=server.http, ACTIONS=actions) == seen


@pytest.mark.smoke
@pytest.mark.integration
def test_openenv_validates_the_server(server):
    command = ROOT / ".bench" / "openenv" / "bin" / "openenv"
    if not command.exists():
        pytest.skip("`make peers` puts openenv into .bench/openenv")
    url = f"{server.http}/openenv/game:Sokoban-v0-tiny"
    done = subprocess.run([command, "validate", "--url", url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Verdict: PASS" in done.stdout
