"""Coroutines of a group: in which order they begin and are taken, and how they are cancelled."""

import asyncio
import gc
import warnings

import pytest

from rollenv.rollout.group_runner import GroupRunner


async def plain(number, begun):
    begun.append(number)
    return number


async def waiting(number, begun, all_here):
    begun.append(number)
    if len(begun) == 5:
        all_here.set()
    await all_here.wait()
    return number


def test_one_that_ended_and_is_not_taken_holds_up_nobody():
    async def run():
        begun, all_here = [], asyncio.Event()
        async with GroupRunner() as runner:
            runner.start(plain(0, []))
            for number in range(5):
                runner.start(waiting(number, begun, all_here))
            await all_here.wait()

    asyncio.run(asyncio.wait_for(run(), 20))


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_coroutines_that_never_began_are_ended_quietly(passes):
    async def run():
        begun = []
        async with GroupRunner() as runner:
            for number in range(20):
                runner.start(plain(number, begun))
            for _ in range(passes):
                await asyncio.sleep(0)
        return begun

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert len(asyncio.run(run())) <= 2
        gc.collect()
    assert not [each for each in said if "never awaited" in str(each.message)]


def test_a_cancelled_one_is_skipped():
    async def run():
        begun = []
        async with GroupRunner() as runner:
            tasks = [runner.start(plain(number, begun)) for number in range(3)]
            runner.cancel(tasks[0])
            runner.cancel(tasks[2])
            return await runner.next()

    assert asyncio.run(run()) == 1
