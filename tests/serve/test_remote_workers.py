"""Rollouts on servers: the same trajectories as at home, whatever becomes of the servers."""

from __future__ import annotations

import signal
import time

import pytest

import rollenv
from rollenv.agents.base import Action, OracleAgent, RandomAgent, Session
from rollenv.core.errors import UsageError
from rollenv.remote.protocol import NotAllowed, ServerLost
from rollenv.rollout.evaluate import evaluate
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.rollout.workers.factory import make_workers, workers_of
from rollenv.rollout.workers.remote import RemoteWorkers

TASKS = [Task("game:Sokoban-v0-tiny", seed) for seed in range(6)] + [Task("game:GuessTheNumber-v0", 1)]


@pytest.fixture(scope="module")
def server(shared_server):
    return shared_server


def collect(workers, tasks, group_size=1, agent=None, **settings):
    with RolloutManager(agent or OracleAgent(0.3), workers, **settings) as manager:
        try:
            return manager.collect(tasks, group_size)
        finally:
            if workers is not None:
                manager.run(workers.aclose())


@pytest.mark.integration
def test_servers_give_what_this_process_gives(server):
    there = collect(RemoteWorkers(server.address), TASKS, 3, keep_views=True)
    assert there == collect(None, TASKS, 3, keep_views=True)
    assert {t.worker for group in there for t in group} == {f"127.0.0.1:{server.port}"}


def test_wrappers_options_and_errors_of_tasks(server):
    task = Task("game:Sokoban-v0-tiny", 1, {}, {"concat": {}})
    assert collect(RemoteWorkers(server.address), [task], 2) == collect(None, [task], 2)
    with pytest.raises(UsageError, match="no argument"):
        collect(RemoteWorkers(server.address), [Task("game:Sokoban-v0-tiny", 1, {"sandboxes": 1})])


def test_evaluation_by_the_name_of_the_workers(server):
    assert workers_of(f"{server.address},127.0.0.1:1") == ("servers", 2)
    with make_workers(server.address) as workers, RolloutManager(RandomAgent(), workers) as manager:
        there = evaluate(RandomAgent(), "game:Sokoban-v0-tiny", n=30, seed=5, manager=manager)
    assert there.reward == evaluate(RandomAgent(), "game:Sokoban-v0-tiny", n=30, seed=5).reward


@pytest.mark.parametrize("wrong", ["rollenv+ws://h:1/game:X-v0", "rollenv+ws://h:1,,", "rollenv+ws://"])
def test_wrong_addresses(wrong):
    with pytest.raises(UsageError):
        RemoteWorkers(wrong)
    with pytest.raises(UsageError, match="weights"):
        RemoteWorkers("rollenv+ws://h:1,h:2", weights=[1.0])


@pytest.mark.integration
def test_the_load_follows_the_weights(serve):
    servers = [serve(workers=1), serve(workers=1)]
    hosts = ",".join(f"127.0.0.1:{served.port}" for served in servers)
    workers = RemoteWorkers(f"rollenv+ws://{hosts}", weights=[3.0, 1.0])
    groups = collect(workers, [Task("test:Moody-v0", n) for n in range(40)], agent=Slow())
    first = sum(t.worker.endswith(f":{servers[0].port}") for g in groups for t in g)
    assert 25 <= first <= 35


class Slow(Session):
    """Asks for a short wait twice, and then for the end."""

    def start(self, env, seed):
        return self

    async def act(self, observation, info):
        return Action("end" if observation == "turn 2" else "hang 0.2")


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_server_that_refuses_the_token_is_named_once(guarded, token, monkeypatch, caplog):
    monkeypatch.setenv("ROLLENV_TOKEN", token)
    with pytest.raises(NotAllowed, match="ROLLENV_TOKEN") as caught:
        collect(RemoteWorkers(guarded[0].address), TASKS)
    assert str(caught.value).count(str(guarded[0].port)) == 1
    assert not caplog.records


def test_a_client_that_is_told_to_slow_down_slows_down(serve):
    served = serve("--rate", "40", workers=1)
    workers = RemoteWorkers(served.address, ping_every=1.0)
    tasks = [Task("game:Sokoban-v0-tiny", seed) for seed in range(20)]
    assert collect(workers, tasks, max_concurrent=20) == collect(None, tasks)


@pytest.mark.parametrize("draining", [True, False])
def test_servers_that_do_not_play_are_given_up_with_a_sentence(serve, draining, tmp_path):
    with open(tmp_path / "log", "w+") as log:
        served = serve("--drain", "60", workers=1, stderr=log)
        held = rollenv.make(f"{served.address}/game:Sokoban-v0-tiny")
        held.reset(seed=1)
        served.signal(signal.SIGTERM if draining else signal.SIGKILL)
        while draining and "draining: 1 open sessions" not in (tmp_path / "log").read_text():
            time.sleep(0.05)
        workers = RemoteWorkers(served.address, ping_every=0.1, lost_after=0.5, patience=1.0)
        with pytest.raises(ServerLost, match="is about to stop" if draining else str(served.port)) as raised:
            collect(workers, TASKS)
        assert raised.value.exit_code == 6
        if draining:
            held.close()
            assert served.process.wait(60) == 0
            assert (tmp_path / "log").read_text().endswith("stopped\n")
            assert "Traceback" not in (tmp_path / "log").read_text()
