"""Rollout beside training: staleness, updates in the middle of a turn, long tasks together. All in virtual time."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from troubled import ID, Echo, Policy, tasks

from rollenv import UsageError
from rollenv.rollout.clock import Clock
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.stream import RolloutStream, TailBatches
from rollenv.rollout.types import Task


def train(policy, steps, *, train_seconds=0.0, source=None, **settings):
    """Consume batches and update after each; (batches, stream, seconds of each wait)."""
    manager = RolloutManager(policy, clock=Clock.VIRTUAL)

    async def main():
        clock, batches, waits, ages = asyncio.get_running_loop().time, [], [], []
        async with RolloutStream(manager, source or tasks(), **settings) as stream:
            for _ in range(steps):
                began = clock()
                batch = await stream.next_batch()
                waits.append(clock() - began)
                ages.append(stream.staleness(batch)["staleness/max"])
                batches.append(batch)
                await asyncio.sleep(train_seconds)
                await stream.update_weights()
        return batches, waits, ages

    with manager:
        return *manager.run(main()), manager


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(0, 1),
    st.floats(0, 30),
    st.integers(0, 2**20),
)
def test_no_token_is_too_old_and_no_trajectory_is_lost_doubled_or_mixed(
    bound, groups, extra, size, members, train_seconds, seed
):
    rng = random.Random(seed)
    policy = Policy(lambda _: rng.uniform(0.5, 20.0))
    batches, _, ages, _ = train(
        policy,
        6,
        train_seconds=train_seconds,
        groups=groups,
        group_size=size,
        extra_groups=extra,
        extra_members=members,
        max_staleness=bound,
    )
    assert max(ages) <= bound
    seeds = [group.task.seed for batch in batches for group in batch]
    assert len(seeds) == len(set(seeds)), "a task came twice"
    for batch in batches:
        assert len(batch) == groups
        for group in batch:
            assert len(group.complete) == size
            assert all(t.task == group.task for t in group)
            assert len({t.member for t in group}) == size


def test_training_and_playing_overlap():
    """8 turns' seconds an episode, as long as training: with a bound of 1, waiting is gone after the first batch."""
    _, together, _, _ = train(Policy(), 6, train_seconds=8.0, groups=4, max_staleness=1)
    _, apart, _, _ = train(Policy(), 6, train_seconds=8.0, groups=4, max_staleness=0)
    assert apart == pytest.approx([8.0] * 6)
    assert together[0] == pytest.approx(8.0)
    assert together[1:] == pytest.approx([0.0] * 5)


def test_a_turn_that_an_update_interrupts_keeps_its_tokens():
    batches, _, _, _ = train(Policy(lambda seed: 6.0), 4, train_seconds=8.0, groups=2, extra_groups=2, max_staleness=2)
    turns = [turn for batch in batches for group in batch for t in group for turn in t.turns]
    assert any(len(set(turn.versions)) == 2 for turn in turns), "some turn saw an update between its two tokens"
    assert all(turn.oldest_version == turn.versions[0] == turn.policy_version for turn in turns)


def test_what_gets_too_old_is_begun_again_and_counted():
    slow = Policy(lambda seed: 100.0 if seed // 1_000_003 == 1 else 2.0)
    batches, _, ages, manager = train(slow, 8, groups=2, extra_groups=1, max_staleness=1)
    assert max(ages) <= 1
    assert 1 not in {group.task.seed for batch in batches for group in batch}
    assert manager.stats.metrics()["cancelled/trajectories"] >= 1


def test_the_source_may_end():
    batches, *_ = train(Policy(), 3, groups=2, source=[Task(ID, n) for n in range(3)], max_staleness=1)
    assert [len(batch) for batch in batches] == [2, 1, 0]


def test_an_agent_without_weights_cannot_be_updated():
    async def main():
        async with RolloutStream(manager, tasks(), 1) as stream:
            await stream.next_batch()
            await stream.update_weights()

    with RolloutManager(Echo(), clock=Clock.VIRTUAL) as manager, pytest.raises(UsageError, match="no update_weights"):
        manager.run(main())


def test_an_error_in_the_rollout_reaches_the_trainer():
    with pytest.raises(UsageError, match="argument"):
        train(Policy(), 2, groups=2, source=tasks(nonsense=1))


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, ValueError])
@pytest.mark.parametrize("where", ["source", "keep", "on_trajectory"])
def test_what_callbacks_raise_in_the_thread_of_a_rollout_reaches_the_trainer(kind, where):
    def fail(*_):
        raise kind("as it is")

    def source():
        yield Task(ID, 0)
        fail()

    async def main():
        keep = fail if where == "keep" else None
        async with RolloutStream(manager, source() if where == "source" else tasks(), 2, keep=keep) as stream:
            await asyncio.wait_for(stream.next_batch(), 5.0)

    callback = fail if where == "on_trajectory" else None
    with RolloutManager(Echo(), thread=True, on_trajectory=callback) as manager:
        with pytest.raises(kind):
            asyncio.run_coroutine_threadsafe(main(), manager._loop.loop).result(10.0)
        assert manager.reacts()


def test_long_tasks_are_put_by_and_played_together():
    slow = Policy(lambda seed: 50.0 if (seed // 1_000_003) % 4 == 0 else 2.0)
    manager = RolloutManager(slow, clock=Clock.VIRTUAL)

    async def main():
        clock, took, seeds = asyncio.get_running_loop().time, [], []
        rounds = TailBatches(manager, tasks(), 4, 2, extra_groups=2)
        for _ in range(8):
            began = clock()
            batch = await rounds.next_batch()
            took.append(clock() - began)
            seeds.append([group.task.seed for group in batch])
        return took, seeds, rounds.long

    with manager:
        took, seeds, long = manager.run(main())
    played = [seed for batch in seeds for seed in batch]
    assert len(played) == len(set(played))
    begun = {*played, *(task.seed for task in long)}
    assert begun == set(range(max(begun) + 1)), "no task is lost"
    rounds = [any(seed % 4 == 0 for seed in batch) for batch in seeds]
    assert [seconds > 100 for seconds in took] == rounds
    assert sum(rounds) == 2
    longest = [seed for batch, is_long in zip(seeds, rounds, strict=True) if is_long for seed in batch]
    assert sum(seed % 4 == 0 for seed in longest) >= 6, "long rounds are of long tasks"
