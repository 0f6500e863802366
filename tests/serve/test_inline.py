"""Ids that an owner names play in the server's own process, as long as they are fast."""

from __future__ import annotations

import json

import pytest
from plain_clients import plain
from serving import Served, patient

import rollenv
from rollenv.core.checker import check_env
from rollenv.core.errors import EpisodeOver
from rollenv.remote.protocol import EnvBroke

IDS = ["game:Sokoban-v0-tiny", "game:Hangman-v0-easy"]


@pytest.fixture(scope="module")
def inline():
    served = Served("--inline", "game:*", "--inline", "test:*", workers=1)
    yield served
    served.stop()


def places(served):
    """Environments by worker."""
    rows = patient.get(f"{served.http}/health").json()["workers"]
    return {row["worker"]: row["envs"] for row in rows if "envs" in row}


@pytest.mark.parametrize("env_id", IDS)
def test_it_plays_the_same_in_the_server(inline, env_id):
    near, far = rollenv.make(env_id), rollenv.make(f"{inline.address}/{env_id}")
    assert far.reset(3) == plain(near.reset(3))
    assert places(inline)["server"] == 1
    over = False
    while not over:
        action = near.sample_random_action()
        answer = near.step(action)
        assert list(far.step(action)) == plain(answer)
        over = answer[2] or answer[3]
    with pytest.raises(EpisodeOver):
        far.step(action)
    far.close()
    near.close()


@pytest.mark.integration
def test_it_keeps_every_promise_there(inline):
    env = rollenv.make(f"{inline.address}/{IDS[0]}")
    check_env(env)
    env.close()


def test_an_environment_that_raises_breaks_its_session_alone(inline):
    well = rollenv.make(f"{inline.address}/{IDS[0]}")
    well.reset(1)
    broken = rollenv.make(f"{inline.address}/test:Moody-v0")
    broken.reset(0)
    with pytest.raises(EnvBroke):
        broken.step("raise")
    well.step(well.sample_random_action())
    broken.close()
    well.close()


def test_a_slow_one_plays_in_workers_from_then_on(inline):
    env = rollenv.make(f"{inline.address}/test:Moody-v0")
    env.reset(0)
    env.step("hang 1.1")
    again = rollenv.make(f"{inline.address}/test:Moody-v0")
    again.reset(1)
    held = places(inline)
    assert held["process-0"] == 1, json.dumps(held)
    env.close()
    again.close()
