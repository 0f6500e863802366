"""Episodes on machines of the sandbox: many at once, and when the process that holds the machines is killed."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest
from waiting import eventually

from rollenv.agents.base import Action, OracleAgent, Session
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.rollout.workers.processes import ProcessWorkers

pytestmark = pytest.mark.integration
#: Not git: the ids of new commits depend on the time.
TASKS = [
    Task(f"shell:{name}-v0", seed, {"calls": "plain"}) for name in ("Text", "Tables", "Trees") for seed in (1, 2, 3)
]
LOOK = "pwd; find . | LC_ALL=C sort | head -30; id -un"


class Careful:
    """Looks around before each command of the solution, and takes its time."""

    def start(self, env, seed):
        return _Looking(OracleAgent().start(env, seed))


class _Looking(Session):
    def __init__(self, expert):
        self.expert, self.looked = expert, False

    async def act(self, observation, info):
        await asyncio.sleep(0.2)
        self.looked = not self.looked
        return Action(LOOK) if self.looked else await self.expert.act(observation, info)


def played(pool=None, during=None):
    async def both(manager):
        playing = asyncio.create_task(manager.collect_async(TASKS, 1))
        if during is not None:
            await during()
        return await playing

    with RolloutManager(Careful(), pool, keep_views=True) as manager:
        return [group.trajectories[0] for group in manager.run(both(manager))]


def processes(pid=None):
    """All below a process."""
    return set(psutil.Process(pid).children(recursive=True))


def mounts():
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if "rollenv" in line]


def test_a_killed_worker_costs_nothing_but_time():
    expected, held = played(), set()
    assert all(trajectory.success for trajectory in expected)
    with ProcessWorkers(2, ping_every=0.1, close_deadline=1.0) as pool:

        async def kill():
            while not held:
                await asyncio.sleep(0.05)
                playing = (report["pid"] for report in pool.report() if report["envs"])
                pid = next((pid for pid in playing if processes(pid)), None)
                if pid is not None:  # a machine runs there
                    held.update(processes(pid))
                    os.kill(pid, signal.SIGKILL)

        there = played(pool, kill)
        assert sum(report["deaths"] for report in pool.report()) == 1
    assert sum(trajectory.replays for trajectory in there) >= 1
    for ours, theirs in zip(expected, there, strict=True):
        assert [(t.observation, t.text) for t in ours.turns] == [(t.observation, t.text) for t in theirs.turns]
        assert (theirs.reward, theirs.status, theirs.success) == (ours.reward, ours.status, ours.success)
    assert held
    assert eventually(lambda: not any(process.is_running() for process in held))
    assert not mounts()


def test_many_at_once_leave_nothing():
    before = processes()
    tasks = [Task("shell:Mix-v0-easy", seed) for seed in range(64)]
    with RolloutManager(OracleAgent(), max_concurrent=64) as manager:
        groups = manager.collect(tasks, 1)
    assert all(group.trajectories[0].success for group in groups)
    assert eventually(lambda: processes() <= before)
    assert not mounts()
