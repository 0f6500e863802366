"""A rollout over several managers: equal to one, whichever of them are lost. In virtual time, and in Ray."""

import asyncio
import json
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from troubled import ID, Echo, Policy, tasks

from rollenv import UsageError
from rollenv.agents.base import OracleAgent, update_weights_of
from rollenv.rollout.clock import Clock
from rollenv.rollout.group_runner import RolloutBroken
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.shard import ShardLost
from rollenv.rollout.shards import Fleet, ShardedManager
from rollenv.rollout.stream import RolloutStream
from rollenv.rollout.types import Task, Trajectory

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from local_shard import LocalShard


class Local:
    """Shards in this process; ``alive`` are those that were started and not lost."""

    def __init__(self, count, agent, **how):
        self.alive: dict[str, LocalShard] = {}
        self.started = 0

        async def start(name):
            self.started += 1
            self.alive[name] = LocalShard(name, lambda: RolloutManager(agent()))
            return self.alive[name]

        self.fleet = Fleet([f"shard-{i}" for i in range(count)], start, ping_every=0, **how)

    def manager(self):
        return ShardedManager(self.fleet, clock=Clock.VIRTUAL)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shards_give_what_one_manager_gives(count):
    some = [Task("game:Sokoban-v0-easy", seed) for seed in range(7)]
    expected = RolloutManager(OracleAgent(0.3)).collect(some, 3)
    with Local(count, lambda: OracleAgent(0.3), capacity=2).manager() as manager:
        assert manager.collect(some, 3) == expected
        episodes = [Trajectory(task, member=member) for task in some for member in range(3)]
        manager.play(episodes)
    plain = [Trajectory(task, member=member) for task in some for member in range(3)]
    with RolloutManager(OracleAgent(0.3)) as alone:
        alone.play(plain)
    assert episodes == plain


def train(local, steps, *, kills=(), **how):
    """Batches, and how old their oldest token was; shards are ended at the given seconds."""
    rng = random.Random(0)

    async def kill():
        clock = asyncio.get_running_loop().time
        for when in sorted(kills):
            await asyncio.sleep(max(0.0, when - clock()))
            there = [slot for slot in local.fleet.slots if slot.shard is not None]
            if there:
                rng.choice(there).shard.kill()

    async def main(manager):
        batches, ages = [], []
        async with RolloutStream(manager, tasks(), **how) as stream:
            killing = asyncio.create_task(kill())
            for _ in range(steps):
                batch = await stream.next_batch()
                ages.append(stream.staleness(batch)["staleness/max"])
                batches.append(batch)
                await asyncio.sleep(3.0)
                await stream.update_weights()
            killing.cancel()
        return batches, ages

    with local.manager() as manager:
        return manager.run(main(manager))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 1),
    st.lists(st.floats(0, 60), max_size=6),
    st.integers(0, 2**20),
)
def test_no_group_is_lost_doubled_or_too_old_whatever_shards_are_lost(shards, bound, extra, members, kills, seed):
    rng = random.Random(seed)
    local = Local(shards, lambda: Policy(lambda _: rng.uniform(0.5, 20.0)), capacity=3, max_losses=100)
    batches, ages = train(
        local, 6, kills=kills, groups=3, group_size=2, extra_groups=extra, extra_members=members, max_staleness=bound
    )
    assert max(ages) <= bound
    seeds = [group.task.seed for batch in batches for group in batch]
    assert len(seeds) == len(set(seeds)) == 18, "a task came twice"
    for group in (group for batch in batches for group in batch):
        assert len(group.complete) == 2
        assert all(t.task == group.task for t in group)
        assert len({t.member for t in group}) == 2


def test_a_shard_that_starts_later_plays_with_the_newest_weights():
    local = Local(2, Policy, capacity=2, max_losses=5, backoff=1.0)
    _, ages = train(local, 8, kills=[20.0], groups=4, max_staleness=1)
    assert local.started == 3
    assert max(ages) <= 1
    assert {shard.manager.agent.version for shard in local.alive.values()} == {8}


def test_what_is_cancelled_is_cancelled_in_the_shards():
    local = Local(2, lambda: Policy(lambda seed: 2.0 + seed % 7), capacity=8)
    with local.manager() as manager:
        groups = manager.batch(tasks(), 3, 2, extra_groups=3, extra_members=1)
        assert [len(group.complete) for group in groups] == [2, 2, 2]
        assert not any(shard._playing for shard in local.alive.values())
        assert not any(slot.work for slot in local.fleet.slots)


def test_a_rollout_without_shards_ends_with_the_reason():
    local = Local(2, lambda: Policy(lambda seed: 100.0), max_losses=0, capacity=1)  # so that both play
    with pytest.raises(RolloutBroken, match="shard-1"):
        train(local, 3, kills=[1.0, 2.0], groups=2)


def test_errors_of_the_task_are_not_taken_for_losses():
    local = Local(2, Echo)
    with local.manager() as manager, pytest.raises(UsageError, match="argument"):
        manager.collect([Task(ID, 0, {"nonsense": 1})])
    assert [slot.losses for slot in local.fleet.slots] == [0, 0]


def test_a_shard_that_does_not_answer_is_lost():
    class Deaf(LocalShard):
        async def ping(self):
            await asyncio.sleep(1e6)

    shards = iter([Deaf, LocalShard])

    async def start(name):
        return next(shards)(name, lambda: RolloutManager(Policy(lambda seed: 30.0)))

    fleet = Fleet(["only"], start, ping_every=1.0, lost_after=5.0)
    with ShardedManager(fleet, clock=Clock.VIRTUAL) as manager:
        groups = manager.batch(tasks(), 2)
    assert [len(group.complete) for group in groups] == [1, 1]
    assert "did not answer within 5 s" in fleet.slots[0].last_error
    assert fleet.begun_again == 2


@pytest.mark.parametrize("deaf", [True, False])
def test_a_shard_that_hangs_at_its_first_weights_does_not_hold_the_next_update(deaf):
    class Hangs(LocalShard):
        """Takes its first weights once it has answered often enough; a deaf one never does."""

        def __init__(self, *args):
            super().__init__(*args)
            self.pings = 0

        async def update(self, weights, version):
            while deaf or self.pings < 9:
                await asyncio.sleep(1.0)
            return await super().update(weights, version)

        async def ping(self):
            self.pings += 1
            return await (asyncio.sleep(1e6) if deaf else super().ping())

    made = []

    async def start(name):
        made.append((Hangs if len(made) == 1 else LocalShard)(name, lambda: RolloutManager(Policy())))
        return made[-1]

    async def main():
        await fleet.ready()
        await update_weights_of(fleet)
        made[0].kill()
        fleet.lost(fleet.slots[0], made[0], ShardLost("ended"))
        await asyncio.sleep(2.0)  # the next one takes its first weights
        await asyncio.wait_for(update_weights_of(fleet), 1e5)
        await fleet.ready()
        assert fleet.slots[0].shard is made[-1]
        assert (len(made), fleet.slots[0].losses) == ((3, 2) if deaf else (2, 1))
        assert made[-1].manager.agent.version == 2

    fleet = Fleet(["only"], start, ping_every=0, lost_after=5.0)
    with ShardedManager(fleet, clock=Clock.VIRTUAL) as manager:
        manager.run(main())


class Slow(LocalShard):
    """Its updates take long, and some fail."""

    updating = 0

    def __init__(self, name, build, fails=False):
        super().__init__(name, build)
        self.fails, self.closed = fails, False

    async def update(self, weights, version):
        if self.fails:
            raise ValueError("out of memory")
        Slow.updating += 1
        try:
            await asyncio.sleep(10.0)
            return await super().update(weights, version)
        finally:
            Slow.updating -= 1

    async def close(self):
        self.closed = True
        await super().close()


def test_an_update_that_fails_in_one_shard_has_ended_in_the_others():
    async def start(name):
        return Slow(name, lambda: RolloutManager(Policy()), fails=name == "b")

    async def main():
        await fleet.ready()
        await fleet.suspend()
        with pytest.raises(ValueError, match="memory"):
            await fleet.update_weights()
        return Slow.updating

    fleet = Fleet(["a", "b", "c"], start, ping_every=0)
    with ShardedManager(fleet, clock=Clock.VIRTUAL) as manager:
        assert manager.run(main()) == 0


@pytest.mark.parametrize("fails", [True, False])
def test_a_shard_that_never_plays_is_closed(fails):
    """Because it does not take the newest weights, or because the fleet ends meanwhile."""
    shards = []

    async def start(name):
        shards.append(Slow(name, lambda: RolloutManager(Policy()), fails=fails and len(shards) == 1))
        return shards[-1]

    async def main():
        await fleet.ready()
        await update_weights_of(fleet)
        shards[0].kill()
        await fleet.suspend()  # which notices
        await asyncio.sleep(3.0)

    fleet = Fleet(["only"], start, ping_every=0)
    with ShardedManager(fleet, clock=Clock.VIRTUAL) as manager:
        manager.run(main())
    assert [shard.closed for shard in shards] == [True] * len(shards)
    assert len(shards) >= 2


def test_a_shard_that_is_lost_often_comes_back_within_a_minute():
    local = Local(1, lambda: Policy(lambda seed: 30.0), max_losses=2000)
    local.fleet.slots[0].losses = 1500
    groups, _ = train(local, 1, kills=[5.0], groups=1)
    assert len(groups[0]) == 1
    assert local.started == 2


def test_the_run_directory_has_the_health_of_all_shards(tmp_path):
    local = Local(2, Echo, capacity=1)
    troubles = [Task(ID, n, {"trouble": "raise"} if n == 1 else {}) for n in range(6)]
    with ShardedManager(local.fleet, clock=Clock.VIRTUAL, run_dir=tmp_path) as manager:
        manager.collect(troubles, 2)
        told = json.loads((tmp_path / "health.json").read_text())
        expected = [shard.manager.health.env(ID).counts for shard in local.alive.values()]
    assert told["envs"][0]["counts"] == dict(expected[0] + expected[1])
    assert told["envs"][0]["counts"]["completed"] == 10
    assert [(row["name"], row["state"]) for row in told["workers"]] == [
        ("shard-0/inline", "up"), ("shard-1/inline", "up"),
    ]  # fmt: skip
    assert {event[2].partition("/")[0] for event in told["events"]} <= {"shard-0", "shard-1"}
