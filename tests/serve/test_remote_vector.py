"""Served environments that step together: as at home, whatever happens in between."""

from __future__ import annotations

import asyncio
import signal

import numpy as np
import pytest
from plain_clients import health
from waiting import eventually

import rollenv
from rollenv.core.errors import UsageError
from rollenv.core.vector import AutoresetMode, make_vec
from rollenv.remote import protocol
from rollenv.remote.address import parse
from rollenv.remote.env import Servers
from rollenv.remote.protocol import EnvBroke
from rollenv.rollout.types import Task
from rollenv.rollout.workers.remote import RemoteWorkers

MAZE = "game:Sokoban-v0-tiny"


def played(vector, turns):
    """What it shows in many episodes of random moves."""
    rng = np.random.default_rng(0)
    shown = [vector.reset(seed=3)[0]]
    for _ in range(turns):
        moves = rng.choice(["up", "down", "left", "right"], len(vector))
        observations, rewards, terminated, truncated, infos = vector.step([f"\\boxed{{{move}}}" for move in moves])
        shown.append((observations, rewards.tolist(), terminated.tolist(), truncated.tolist(), [*map(sorted, infos)]))
    vector.close()
    return shown


@pytest.mark.integration
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("together", [True, False])
def test_a_vector_of_served_environments_is_one_at_home(server, mode, together):
    ids = [f"{server.address}/{MAZE}"] * 5
    there = played(make_vec(ids, autoreset_mode=mode, async_mode=not together), 60)
    assert there == played(make_vec([MAZE] * 5, autoreset_mode=mode), 60)


def test_some_of_them_step(server):
    vector = make_vec([f"{server.address}/test:Echo-v0"] * 4)
    vector.reset(seed=0)
    first = vector.step({1: "a", 3: "b"})[0]
    assert [each.split()[-1] for each in first] == ["a", "b"]
    assert [each.split()[0] for each in vector.step(["c"] * 4)[0]] == ["1", "2", "1", "2"]
    vector.close()


def test_many_large_actions_go_in_several_messages(server):
    vector = make_vec([f"{server.address}/test:Echo-v0"] * 12)
    vector.reset(seed=0)
    actions = [chr(97 + i) * 600_000 for i in range(12)]
    assert [each.split()[-1] for each in vector.step(actions)[0]] == actions
    with pytest.raises(UsageError, match="too large"):
        vector.step(["x" * protocol.LARGEST_REQUEST] * 12)
    vector.close()

    async def played() -> list[str]:
        workers = RemoteWorkers(server.address)
        envs = [await workers.open(Task("test:Echo-v0", i)) for i in range(12)]
        await asyncio.gather(*(env.reset() for env in envs))
        seen = await asyncio.gather(*(env.step(action) for env, action in zip(envs, actions, strict=True)))
        with pytest.raises(UsageError, match="too large"):
            await envs[0].step("x" * protocol.LARGEST_REQUEST)
        await workers.aclose()
        return [each.observation.split()[-1] for each in seen]

    assert asyncio.run(played()) == actions


@pytest.mark.integration
def test_many_large_observations_come_in_several_messages(server):
    vector = make_vec([f"{server.address}/test:Moody-v0"] * 6)
    vector.reset(seed=0)
    assert [len(each) for each in vector.step([f"huge {15 << 20}"] * 6)[0]] == [15 << 20] * 6
    vector.close()


@pytest.mark.parametrize("trouble", ["raise oh", "die", "wrong"])
@pytest.mark.integration
def test_one_that_fails_harms_no_other(server, trouble):
    vector = make_vec([f"{server.address}/test:Moody-v0"] * 4)
    vector.reset(seed=0)
    with pytest.raises(EnvBroke):
        vector.step(["on", trouble, "on", "on"])
    vector.envs[1].reset(seed=0)
    # those after the one that failed have not played: their steps were never taken
    assert [each.split()[-1] for each in vector.step(["on"] * 4)[0]] == ["2", "1", "1", "1"]
    vector.close()


def test_what_was_sent_ahead_and_not_played_is_forgotten(server):
    before = health(server)["sessions"]["open"]
    envs = [rollenv.make(f"{server.address}/test:Echo-v0") for _ in range(2)]
    twin = rollenv.make(f"{server.address}/test:Echo-v0")
    for env in (*envs, twin):
        env.reset(seed=5)
    type(envs[0]).steps_ahead([(env, "a") for env in envs])
    assert envs[0].step("a") == twin.step("a")
    twin.reset(seed=5)
    assert envs[1].step("b") == twin.step("b")
    assert envs[1].step("c") == twin.step("c")
    (connection,) = Servers.of(parse(f"{server.address}/test:Echo-v0")[0]).connections
    type(envs[0]).steps_ahead([(env, "a") for env in envs])
    for env in (*envs, twin):
        env.close()
    assert not connection._ahead, "answers that nobody collects"
    assert eventually(lambda: health(server)["sessions"]["open"] <= before)


@pytest.mark.integration
def test_servers_die_in_between(serve):
    servers = [serve(), serve()]
    address = ",".join(server.address.removeprefix("rollenv+ws://") for server in servers)
    vector = make_vec([f"rollenv+ws://{address}/{MAZE}"] * 6)
    vector.reset(seed=1)
    near = make_vec([MAZE] * 6)
    near.reset(seed=1)
    for turn in range(12):
        if turn == 4:
            servers[0].signal(signal.SIGKILL)
        if turn == 8:
            servers[0] = serve(port=servers[0].port)
            servers[1].signal(signal.SIGKILL)
        moves = [env.oracle_action() for env in near.envs]
        assert vector.step(moves)[0] == near.step(moves)[0]
    vector.close()
