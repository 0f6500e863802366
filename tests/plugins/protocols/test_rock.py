"""ROCK's client for environments, unmodified and in an environment of its own, against a real server."""

from __future__ import annotations

import pytest
from clients import expected, run

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


@pytest.mark.smoke
@pytest.mark.integration
def test_rock(server):
    seen, actions = expected(3)
    assert run("rock", ROCK, ROCK_BASE_URL=server.http, ACTIONS=actions) == seen
