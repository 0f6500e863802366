"""Environments in worker processes: whatever they do to their process, the episodes end as if nothing had been."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import psutil
import pytest
from troubled import ID, Echo, all_up, assert_whole

import rollenv
from rollenv import UnknownEnv, UsageError
from rollenv.agents.base import OracleAgent
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.rollout.workers.processes import ProcessWorkers

pytestmark = pytest.mark.slow
QUICK = EpisodeLimits(max_backoff=0.0)


@pytest.fixture
def pool():
    with ProcessWorkers(2, envs_per_process=16, ping_every=0.1, lost_after=4.0, close_deadline=1.0) as workers:
        yield workers
    assert not [child for child in psutil.Process().children() if "spawn_main" in str(child.cmdline())]


def collect(pool, tasks, group_size=1, *, limits=QUICK, agent=None, **settings):
    with RolloutManager(agent or Echo(), pool, limits=limits, **settings) as manager:
        return manager.collect(tasks, group_size)


def test_processes_give_what_this_process_gives(pool):
    tasks = [Task("game:Sokoban-v0-easy", s) for s in range(6)] + [Task("game:GuessTheNumber-v0", 1)]
    with RolloutManager(OracleAgent(0.3), pool, keep_views=True) as manager:
        manager.run(all_up(pool))
        there = manager.collect(tasks, 3)
    assert there == RolloutManager(OracleAgent(0.3), keep_views=True).collect(tasks, 3)
    assert {t.worker for g in there for t in g} == {"process-0", "process-1"}


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["raise", "exit", "kill", "stop", "hang"])
def test_an_episode_survives_whatever_happens_to_its_process(pool, tmp_path, trouble):
    bad = Task(ID, 7, {"trouble": trouble, "at": 3, "once": str(tmp_path / "happened")})
    tasks = [bad, *[Task(ID, s) for s in range(8)]]
    groups = collect(pool, tasks, 2, limits=replace(QUICK, step=1.0 if trouble == "hang" else 30.0))
    assert_whole(groups, tasks)
    assert sum(t.replays for t in groups[0]) >= 1
    if trouble != "hang":  # a process with a hung environment may still be waiting for the others
        died = any(report["deaths"] for report in pool.report())
        assert died == (trouble in ("kill", "stop")), "only what is broken is replaced"


@pytest.mark.slow
def test_a_hung_environment_takes_its_process_with_it_when_the_neighbours_are_done(pool, tmp_path):
    bad = Task(ID, 7, {"trouble": "hang", "at": 1, "once": str(tmp_path / "happened")})
    slow = [Task(ID, s, {"latency": 0.3, "turns": 5}) for s in range(4)]
    groups = collect(pool, [bad, *slow], limits=replace(QUICK, step=0.8))
    assert all(t.complete for g in groups for t in g)
    assert [t.replays for g in groups for t in g] == [1, 0, 0, 0, 0], "neighbours of a hung one are left in peace"


@pytest.mark.slow
def test_an_environment_that_kills_every_process_fails_alone(pool):
    limits = replace(QUICK, max_losses=7, max_replacements=0)
    bad, *good = collect(pool, [Task(ID, 0, {"trouble": "kill"}), *[Task(ID, s) for s in range(4)]], limits=limits)
    assert bad.trajectories[0].status == "failed"
    assert "is gone: signal 9" in bad.trajectories[0].error
    assert all(t.complete for g in good for t in g)


@pytest.mark.slow
def test_an_episode_outlives_two_workers_of_its_own_that_are_killed(pool, tmp_path):
    kwargs = {"trouble": "kill", "once": str(tmp_path / "killed"), "times": 3}  # the first shares its worker
    (group,) = collect(pool, [Task(ID, 0, kwargs)], limits=replace(QUICK, max_replacements=0))
    assert [(t.complete, t.replays) for t in group] == [(True, 3)]


@pytest.mark.slow
def test_a_cancelled_step_frees_its_place(pool):
    async def play():
        with RolloutManager(Echo(), pool, limits=QUICK) as manager:
            for _ in range(3):
                playing = asyncio.create_task(manager.collect_async([Task(ID, 0, {"latency": 0.4})], 8))
                await asyncio.sleep(0.5)
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)
            await asyncio.sleep(0.6)
            return [r["envs"] for r in pool.report()]

    assert asyncio.run(play()) == [0, 0]


def test_more_episodes_than_places_wait_their_turn():
    with ProcessWorkers(1, envs_per_process=2) as pool:
        groups = collect(pool, [Task(ID, s) for s in range(20)])
        assert all(t.complete for g in groups for t in g)


@pytest.mark.slow
def test_wrong_tasks_are_errors_here_too(pool):
    with pytest.raises(UnknownEnv):
        collect(pool, [Task("game:Nothing-v0", 0)])
    with pytest.raises(UsageError, match="num_box"):
        collect(pool, [Task("game:Sokoban-v0-easy", 0, {"num_box": 1})])


def test_what_cannot_be_sent_is_an_error_that_says_what_to_do(pool):
    class Local(rollenv.Env):
        pass

    rollenv.register("test:Local-v0", Local)
    with pytest.raises(UsageError, match="name of its class"):
        collect(pool, [Task("test:Local-v0", 0)])


def test_a_pool_serves_one_loop_at_a_time(pool):
    with RolloutManager(Echo(), pool) as first:
        first.collect([Task(ID, 0)])
        with pytest.raises(UsageError, match="event loop"):
            collect(pool, [Task(ID, 0)])
    ((trajectory,),) = collect(pool, [Task(ID, 0)])
    assert trajectory.complete, "the first loop is gone, so the pool is free"


@pytest.mark.parametrize("wrong", [{"processes": 0}, {"envs_per_process": 0}, {"ping_every": 0}, {"lost_after": 0.5}])
def test_sizes_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError, match="ProcessWorkers needs"):
        ProcessWorkers(**wrong)


@pytest.mark.slow
def test_the_processes_die_with_their_parent(tmp_path):
    program = textwrap.dedent("""
        import asyncio, os, sys, time
        from rollenv.rollout.workers.processes import ProcessWorkers
        from rollenv.rollout.types import Task

        async def main():
            pool = ProcessWorkers(2)
            await pool.open(Task("game:Sokoban-v0-easy", 0))
            while len([r for r in pool.report() if r["state"] == "up" and r["pid"]]) < 2:
                await asyncio.sleep(0.05)
            os.kill(pool.report()[0]["pid"], 19)  # stopped: it cannot notice anything by itself
            print(*[r["pid"] for r in pool.report()], flush=True)
            time.sleep(1000)

        if __name__ == "__main__":
            asyncio.run(main())
    """)
    script = tmp_path / "parent.py"
    script.write_text(program)
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    children = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(100):
        if not any(os.path.exists(f"/proc/{pid}") and "Z" not in _state(pid) for pid in children):
            return
        time.sleep(0.1)
    raise AssertionError("a worker process outlived its parent")


@pytest.mark.slow
def test_a_module_in_the_current_folder_does_not_replace_a_standard_one(tmp_path):
    program = textwrap.dedent("""
        import asyncio, os
        from rollenv.rollout.workers.processes import ProcessWorkers
        from rollenv.rollout.types import Task

        async def main():
            with ProcessWorkers(1) as pool:
                env = await pool.open(Task("game:Sokoban-v0-easy", 0))
                await env.reset()
                print("played", os.environ.get("PYTHONSAFEPATH"))

        if __name__ == "__main__":
            asyncio.run(main())
    """)
    (tmp_path / "script").mkdir()
    script = tmp_path / "script" / "player.py"
    script.write_text(program)
    (tmp_path / "signal.py").write_text("raise RuntimeError('this is not the standard library')")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("played None\n", "")
    (tmp_path / "signal.py").unlink()  # a script from standard input imports from the current folder
    done = subprocess.run([sys.executable], input=program, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("played None\n", "")


def _state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"
