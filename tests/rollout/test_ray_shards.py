"""Shards of a rollout in actors of a real Ray cluster of two nodes on this machine."""

import asyncio
import functools

import pytest
import torch
from ray_cluster import another_node, local_cluster, ray, search_path
from troubled import ID, Echo, assert_whole

import rollenv
from rollenv import UsageError
from rollenv.agents.base import OracleAgent
from rollenv.agents.engines.base import Sampling
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.tiny.model import build_model, build_tokenizer
from rollenv.agents.tiny.settings import TinySize
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.ray_shards import RayShards
from rollenv.rollout.shards import ShardedManager
from rollenv.rollout.stream import RolloutStream, update_weights_of
from rollenv.rollout.types import Task
from rollenv.rollout.workers.processes import ProcessWorkers

pytestmark = pytest.mark.integration
OPTIONS = {"num_cpus": 0.5, "runtime_env": {"env_vars": {"PYTHONPATH": search_path(__file__)}}}
LEVEL = "game:Sokoban-v0-easy"


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def second_node(cluster):
    with another_node(cluster) as node:
        yield node


def oracle():
    return RolloutManager(OracleAgent(0.3))


def slow():
    """Environments in processes, since they sleep."""
    rollenv.register(ID, "troubled:Troubled", abilities=["random_action", "state_key"])  # in the actor's process
    return RolloutManager(Echo(), ProcessWorkers(1, envs_per_process=64))


def model(seed=0):
    tokenizer = build_tokenizer(["up down left right\n" * 9], 280)
    return build_model(TinySize(hidden=16, layers=1, heads=2, intermediate=16), tokenizer, seed), tokenizer


def drawn(groups):
    """What was drawn with which weights; log-probabilities depend on what is in a batch, by rounding."""
    return [[(turn.response_ids, turn.policy_version) for turn in t.turns] for group in groups for t in group]


def local():
    agent = LocalAgent(*model(), StepPrompt("{state}", chat=False), Sampling(1.0, 4))
    return RolloutManager(agent)


@pytest.mark.smoke
def test_shards_are_spread_over_the_nodes_and_give_what_one_manager_gives(cluster, second_node):
    tasks = [Task(LEVEL, seed) for seed in range(10)]
    with ShardedManager(RayShards(2, oracle, capacity=2, actor_options=OPTIONS)) as manager:
        manager.run(manager.fleet.ready())
        assert manager.collect(tasks, 3) == oracle().collect(tasks, 3)
        assert {slot.groups > 0 for slot in manager.fleet.slots} == {True}
        assert len({slot.shard.node for slot in manager.fleet.slots}) == 2


def test_a_shard_or_a_node_that_is_lost_costs_its_groups_another_play(cluster, second_node):
    tasks = [Task(ID, seed, {"turns": 6, "latency": 0.1}) for seed in range(24)]

    async def play(manager):
        await manager.fleet.ready()
        playing = asyncio.create_task(manager.collect_async(tasks, 2))
        await asyncio.sleep(1.0)
        ray.kill(manager.fleet.slots[0].shard.actor)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(cluster.remove_node, second_node, allow_graceful=False)
        return await playing

    fleet = RayShards(2, slow, capacity=4, actor_options=OPTIONS, backoff=0.1)
    with ShardedManager(fleet) as manager:
        groups = manager.run(play(manager))
        assert fleet.begun_again >= 1
    assert [group.task for group in groups] == tasks
    assert_whole(groups, tasks)


def test_weights_reach_all_shards_and_those_that_start_later(cluster):
    other = model(seed=1)[0]
    tasks = [Task(LEVEL, seed, {"max_turns": 3}) for seed in range(4)]
    mine = local()
    mine.run(update_weights_of(mine.agent, other.state_dict().items()))
    expected = mine.collect(tasks, 2)
    fleet = RayShards(2, local, capacity=2, actor_options=OPTIONS, backoff=0.1)
    with ShardedManager(fleet) as manager:
        manager.run(fleet.ready())
        before = manager.collect(tasks, 2)
        manager.run(update_weights_of(manager.agent, other.state_dict().items()))
        assert drawn(manager.collect(tasks, 2)) == drawn(expected) != drawn(before)
        ray.kill(fleet.slots[0].shard.actor)
        assert drawn(manager.collect(tasks, 2)) == drawn(expected)
        assert {turn.policy_version for g in expected for t in g for turn in t.turns} == {1}


def test_a_stream_over_shards_keeps_the_bound(cluster):
    source = (Task(LEVEL, seed, {"max_turns": 3}) for seed in range(10**6))

    async def main(manager):
        ages, seeds = [], []
        async with RolloutStream(manager, source, 3, 2, max_staleness=1, batches=4) as stream:
            for step in range(4):
                batch = await stream.next_batch()
                ages.append(stream.staleness(batch)["staleness/max"])
                seeds += [group.task.seed for group in batch]
                await stream.update_weights(model(seed=step)[0].state_dict().items())
        return ages, seeds

    with ShardedManager(RayShards(2, local, capacity=2, actor_options=OPTIONS)) as manager:
        ages, seeds = manager.run(main(manager))
    assert max(ages) <= 1
    assert len(seeds) == len(set(seeds)) == 12


def test_what_cannot_be_built_is_reported_and_a_missing_cluster_too(cluster, monkeypatch):
    broken = functools.partial(LocalAgent.load, "nowhere")
    with (
        ShardedManager(RayShards(1, broken, actor_options=OPTIONS)) as manager,
        pytest.raises(UsageError, match="nowhere"),
    ):
        manager.collect([Task(LEVEL, 0)])
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UsageError, match=r"ray\.init"):
        RayShards(1, oracle)
    assert torch.is_grad_enabled()
