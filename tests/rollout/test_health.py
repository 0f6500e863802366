"""Health records: streaks, rests, quarantine and recovery, snapshots that are never half written."""

import asyncio
import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from troubled import ID, Echo, Troubled

from rollenv.core.registry import spec
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.records.health import EnvUnhealthy, Health
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import EnvFailure, HostedEnv, InlineWorkers


def test_failures_in_a_row_bring_rest_and_a_completed_episode_ends_it(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("rollenv.rollout.records.health.time.monotonic", lambda: now[0])
    health = Health(max_backoff=100.0)
    for _ in range(3):
        health.failed("e", "w", "raised", "OSError: no")
    assert not health.avoids("w"), "three may happen to anybody"
    health.failed("e", "w", "raised", "OSError: no")
    assert health.avoids("w")
    assert 0 < health.env("e").backoff <= 0.01
    assert health.snapshot()["envs"][0]["state"] == "quarantined"
    now[0] += 0.02
    assert not health.avoids("w"), "the rest is over"
    health.failed("e", "w", "raised", "OSError: no")
    assert 0.01 < health.env("e").backoff <= 0.02, "the next one is twice as long"
    health.ended("e", "w", "completed")
    assert not health.avoids("w")
    assert health.snapshot()["envs"][0]["state"] == "up"
    assert health.snapshot()["envs"][0]["reasons"] == {}


def test_a_clock_that_is_set_back_prolongs_no_rest(monkeypatch):
    health, real = Health(max_backoff=2.0), time.time
    for _ in range(40):
        health.failed("e", "w", "raised", "OSError: no")
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    assert health.env("e").backoff <= 2.0


@given(st.integers(1, 300))
def test_failures_at_the_same_time_are_one_reason_to_rest(n):
    health = Health(unhealthy_after=10_000)
    for _ in range(n):
        health.failed("e", "w", "raised", "all at once")
    assert health.env("e").backoff <= 0.02


def test_a_lost_worker_is_nobodys_streak():
    health = Health()
    for _ in range(50):
        health.failed("e", "w", "lost", "signal 9")
    assert not health.avoids("w")
    assert health.env("e").backoff == 0
    assert health.snapshot()["envs"][0]["counts"] == {"lost": 50}


def test_all_sessions_of_a_worker_that_dies_are_one_event():
    health = Health()
    for _ in range(18):
        health.failed("e", "process-0", "lost", "it ended")
    health.failed("e", "process-1", "lost", "it ended")
    assert [worker for _, _, worker, _, _ in health.events] == ["process-0", "process-1"]
    assert health.env("e").counts["lost"] == 19


def test_an_environment_is_unhealthy_when_nothing_but_failure_comes():
    health = Health(unhealthy_after=3)
    for _ in range(2):
        health.failed("e", "", "hung", "step did not return")
        health.ended("e", "", "failed")
    health.ended("e", "", "completed")
    for _ in range(2):
        health.failed("e", "", "hung", "step did not return")
        health.ended("e", "", "failed")
    health.ended("e", "", "agent_failed")
    health.ended("e", "", "cancelled")
    health.failed("e", "", "raised", "gone")
    with pytest.raises(EnvUnhealthy, match=r"3 episodes.*2 times"):
        health.ended("e", "", "failed")


def test_a_reader_never_sees_half_a_snapshot(tmp_path):
    health, file, stop = Health(), tmp_path / "health.json", threading.Event()
    for i in range(200):
        health.env(f"env-{i}").ok("step", 0.001 * i)
    health.save(file)

    def write():
        while not stop.is_set():
            health.save(file)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(len(json.loads(file.read_text())["envs"]) == 200 for _ in range(50))
    finally:
        stop.set()
        writer.join()


class TwoWorkers(InlineWorkers):
    """Two places in this process, the first of which breaks every environment."""

    async def open(self, task, *, views=False, avoid=lambda name: False):
        name = min("bad", "good", key=lambda n: (avoid(n), n))
        env = await super().open(task, views=views)
        return _Named(env, name)


class _Named:
    def __init__(self, env, worker):
        self.env, self.worker = env, worker

    async def reset(self):
        return await self.env.reset()

    async def step(self, action):
        if self.worker == "bad":
            raise EnvFailure("raised", "OSError: disk full")
        return await self.env.step(action)

    async def call(self, method, *args):
        return await self.env.call(method, *args)

    def close(self):
        self.env.close()

    abandon = close


def test_work_moves_away_from_a_worker_that_fails():
    with RolloutManager(Echo(), TwoWorkers(), limits=EpisodeLimits(max_replays=8), max_concurrent=4) as manager:
        groups = manager.collect([Task(ID, s) for s in range(40)])
    assert all(t.complete and t.worker == "good" for g in groups for t in g)
    bad = manager.health.worker("bad")
    assert bad.counts["raised"] < 40
    assert manager.health.worker("good").counts["completed"] == 40


def test_a_hosted_environment_tells_its_own_errors_from_those_of_others():
    env = HostedEnv(spec(ID), Task(ID, 0, {"trouble": "exit", "at": 1}), views=True)
    env.reset()
    with pytest.raises(EnvFailure, match="SystemExit: 3") as caught:
        env.step("go")
    assert caught.value.kind == "raised"
    env.close()
    asyncio.run(InlineWorkers().aclose())


def test_an_environment_in_this_process_may_run_a_loop_when_it_is_closed(monkeypatch):
    closed = []

    async def play():
        env = await InlineWorkers().open(Task(ID, 0))
        await env.reset()
        monkeypatch.setattr(Troubled, "close", lambda self: asyncio.run(asyncio.sleep(0, closed.append(self))))
        env.close()
        await asyncio.sleep(0)

    asyncio.run(play())
    assert len(closed) == 1
