"""Environments in actors of a real Ray cluster of two nodes on this machine."""

import asyncio
import json
from dataclasses import replace

import pytest
from ray_cluster import another_node, local_cluster, ray, search_path
from troubled import ID, Echo, all_up, assert_whole

from rollenv import UsageError
from rollenv.agents.base import OracleAgent
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.rollout.workers.ray import RayWorkers

pytestmark = pytest.mark.integration
QUICK = EpisodeLimits(max_backoff=0.0)
OPTIONS = {"num_cpus": 0.5, "runtime_env": {"env_vars": {"PYTHONPATH": search_path(__file__)}}}


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def second_node(cluster):
    with another_node(cluster) as node:
        yield node


@pytest.fixture
def pool(cluster, second_node):
    with RayWorkers(2, envs_per_actor=16, actor_options=OPTIONS, ping_every=0.5) as workers:
        yield workers


@pytest.mark.smoke
def test_actors_give_what_this_process_gives_and_are_spread_over_the_nodes(pool):
    tasks = [Task("game:Sokoban-v0-easy", s) for s in range(8)]
    with RolloutManager(OracleAgent(0.3), pool) as manager:
        manager.run(all_up(pool))
        there = manager.collect(tasks, 3)
        assert there == RolloutManager(OracleAgent(0.3)).collect(tasks, 3)
        assert {t.worker for g in there for t in g} == {"actor-0", "actor-1"}
        assert len({slot.worker.node for slot in pool.slots}) == 2


@pytest.mark.parametrize("trouble", ["raise", "exit", "kill", "hang"])
def test_an_episode_survives_whatever_happens_to_its_actor(pool, tmp_path, trouble):
    bad = Task(ID, 7, {"trouble": trouble, "at": 3, "once": str(tmp_path / "happened")})
    tasks = [bad, *[Task(ID, s) for s in range(6)]]
    with RolloutManager(Echo(), pool, limits=replace(QUICK, step=2.0 if trouble == "hang" else 60.0)) as manager:
        groups = manager.collect(tasks, 2)
    assert_whole(groups, tasks)
    assert sum(t.replays for t in groups[0]) >= 1


def test_a_lost_node_costs_replays_and_nothing_else(cluster, second_node, pool):
    tasks = [Task(ID, s, {"turns": 30, "latency": 0.1}) for s in range(12)]

    async def play(manager):
        await all_up(pool)
        playing = asyncio.create_task(manager.collect_async(tasks))
        await asyncio.sleep(1.0)  # of three at least
        await asyncio.to_thread(cluster.remove_node, second_node, allow_graceful=False)
        return await playing

    with RolloutManager(Echo(), pool, limits=QUICK) as manager:
        groups = manager.run(play(manager))
    assert_whole(groups, tasks)
    assert sum(t.replays for g in groups for t in g) >= 4
    assert sum(report["deaths"] for report in pool.report()) >= 1


def test_wrong_tasks_and_a_missing_cluster_are_errors(pool, monkeypatch):
    with RolloutManager(Echo(), pool) as manager, pytest.raises(UsageError, match="num_box"):
        manager.collect([Task("game:Sokoban-v0-easy", 0, {"num_box": 1})])
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UsageError, match=r"ray\.init"):
        RayWorkers(1)


def test_the_command_plays_in_actors(rollenv_process):
    done = rollenv_process("eval", "game:Sokoban-v0-easy", "-a", "noisy:0.4", "-n", "10", "-w", "ray:1", "--json")
    assert done.returncode == 0, done.stderr
    inline = rollenv_process("eval", "game:Sokoban-v0-easy", "-a", "noisy:0.4", "-n", "10", "--json")
    assert {**json.loads(done.stdout), "seconds": 0} == {**json.loads(inline.stdout), "seconds": 0}
