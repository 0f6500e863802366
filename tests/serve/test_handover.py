"""A server that stops hands its sessions to the next one; whoever plays notices nothing."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import stat
import threading
import time

import pytest
from serving import patient

import rollenv
from rollenv.agents.base import OracleAgent, Session
from rollenv.remote import protocol
from rollenv.remote.protocol import ServerLost
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.rollout.workers.remote import RemoteWorkers
from rollenv.serve.handover import IMPORT_PATH, import_file
from rollenv.serve.quotas import SessionLimits
from rollenv.serve.sessions import SessionManager

IDS = ["webshop:mini-easy", "test:Echo-v0", "test:Moody-v0", "gym:Taxi-v3"]


def counters(server):
    return patient.get(f"{server.http}/health").json()["counts"]


def restarted(serve, server, *args):
    server.signal(signal.SIGTERM)
    server.process.wait(30)
    return serve(*args, port=server.port)


def played(env, turns):
    """Turns of an episode that does not end soon."""
    return [list(env.step(word)[:4]) for word in ("\\boxed{up}", "\\boxed{left}", "a", "on")[:turns]]


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.integration
def test_an_episode_goes_on_in_the_next_server(serve, tmp_path, env_id):
    file = tmp_path / "sessions"
    server = serve("--hand-over", str(file))
    env, twin = rollenv.make(f"{server.address}/{env_id}"), rollenv.make(f"{server.address}/{env_id}")
    fresh = rollenv.make(f"{server.address}/{env_id}")
    for each in (env, twin):
        each.reset(seed=3)
    first = played(env, 4)
    assert played(twin, 4) == first
    server = restarted(serve, server, "--hand-over", str(file))
    assert counters(server)["opened"] == 0
    assert not file.exists()
    assert played(env, 4) == played(twin, 4)
    assert fresh.reset(seed=3)[0] == env.reset(seed=3)[0]
    assert counters(server)["opened"] == 0, "it was played in new sessions, by replays"
    for each in (env, twin, fresh):
        each.close()


@pytest.mark.integration
def test_what_is_being_built_goes_on_in_the_next_server(serve, tmp_path):
    file = tmp_path / "sessions"
    server = serve("--hand-over", str(file))
    shown = []

    def play():
        with contextlib.closing(rollenv.make(f"{server.address}/test:Echo-v0", wait=3.0)) as env:
            shown.extend([env.reset(seed=3)[0], env.step("hi")[0]])

    threads = [threading.Thread(target=play) for _ in range(3)]
    for thread in threads:
        thread.start()
    while patient.get(f"{server.http}/health").json()["sessions"]["open"] < 3:
        time.sleep(0.05)
    assert counters(server)["opened"] == 0, "none is built yet"
    server = restarted(serve, server, "--hand-over", str(file))
    for thread in threads:
        thread.join(60)
    assert len(set(shown)) == 2
    assert len(shown) == 6
    assert counters(server)["opened"] == 0, "they were handed over"


@pytest.mark.integration
def test_the_file_is_for_its_user_alone(serve, tmp_path):
    file = tmp_path / "sessions"
    server = serve("--hand-over", str(file))
    env = rollenv.make(f"{server.address}/test:Echo-v0")
    env.reset(seed=1)
    server.signal(signal.SIGTERM)
    server.process.wait(30)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(ServerLost):
        type(env)._connection(env).ask_once("hello", protocol.VERSION)


@pytest.mark.integration
def test_a_session_goes_on_in_another_server(serve):
    new = serve()
    old = serve("--hand-over", new.http)
    both = f"127.0.0.1:{old.port},127.0.0.1:{new.port}"
    envs, shown = [], []
    while counters(old)["opened"] < 3 and len(envs) < 60:  # sessions go to either server
        envs.append(rollenv.make(f"rollenv+ws://{both}/test:Echo-v0"))
        shown.append(envs[-1].reset(seed=len(envs))[0])
    assert counters(old)["opened"] == 3
    assert len(set(shown)) > 1
    before = counters(new)["opened"]
    old.signal(signal.SIGTERM)
    old.process.wait(30)
    assert [env.step("hi")[0].split()[0] for env in envs] == ["1"] * len(envs)
    assert counters(new)["opened"] == before
    for env in envs:
        env.close()
    assert patient.get(f"{new.http}/health").json()["sessions"]["open"] == 0


@pytest.mark.integration
def test_rollouts_over_rolling_restarts_replay_nothing(serve, tmp_path):
    servers = [serve("--hand-over", str(tmp_path / str(i))) for i in range(2)]
    address = "rollenv+ws://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
    tasks = [Task("game:Sokoban-v0-tiny", seed, {}, {}) for seed in range(12)]
    played: list[list] = []

    def play() -> None:
        with RolloutManager(Slow(0.3), RemoteWorkers(address)) as manager:
            played.extend(manager.collect(tasks, 4))
            report.update(manager.health.snapshot(manager.workers.report()))
            manager.run(manager.workers.aclose())

    report: dict = {}
    thread = threading.Thread(target=play)
    thread.start()
    for i in range(2):
        time.sleep(1.0)
        servers[i] = restarted(serve, servers[i], "--hand-over", str(tmp_path / str(i)))
    thread.join(120)
    with RolloutManager(OracleAgent(0.3), None) as manager:
        home = manager.collect(tasks, 4)
    assert [[turns(t) for t in group] for group in played] == [[turns(t) for t in group] for group in home]
    assert sum(record["counts"].get("lost", 0) for record in report["envs"]) == 0, report


class Slow(OracleAgent):
    """An expert that takes its time."""

    def start(self, env, seed):
        return Slowly(super().start(env, seed))


class Slowly(Session):
    def __init__(self, expert):
        self.expert = expert

    async def act(self, observation, info):
        await asyncio.sleep(0.05)
        return await self.expert.act(observation, info)


def turns(trajectory):
    return [(turn.observation, turn.text, turn.reward) for turn in trajectory.turns]


@pytest.mark.combinations
@pytest.mark.parametrize(
    "told",
    [
        None,
        5,
        [],
        {},
        {"name": "x"},
        b"\xc1",
        {"name": "n" * 20, "owner": 1},
        {"name": "n" * 20, "calls": [["no", [], 1]]},
    ],
)
def test_other_data_is_refused(server, told):
    body = told if isinstance(told, bytes) else protocol.pack(told)
    assert patient.post(f"{server.http}{IMPORT_PATH}", content=body).status_code == 400


def test_whoever_is_no_admin_hands_over_nothing(guarded):
    served, token = guarded
    for name in ("ann", "bob"):
        answer = patient.post(f"{served.http}{IMPORT_PATH}", headers={"Authorization": f"Bearer {token[name]}"})
        assert answer.status_code == 401


def test_a_file_that_is_none_stops_the_start(tmp_path):
    file = tmp_path / "sessions"
    file.write_bytes(b"\xc1 nonsense")
    with pytest.raises(rollenv.core.errors.UsageError):
        import_file(SessionManager(None, SessionLimits()), file)  # type: ignore[arg-type]
    assert file.exists()
