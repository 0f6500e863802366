"""Deadlines of calls: what a call becomes that takes too long, and whom its cancellation reaches."""

import asyncio
import contextlib

import pytest

from rollenv.rollout.clock import Clock
from rollenv.rollout.deadline import Deadline, DeadlinePassed


def play(call, *, cancel_after=None, seconds=10.0):
    """The answer of a call or the class of its error, and whether the next await was left in peace."""

    async def main():
        try:
            async with Deadline(seconds):
                outcome = await call()
        except BaseException as error:
            outcome = type(error)
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return outcome, "hit"
        return outcome, "left in peace"

    async def around():
        task = asyncio.create_task(main())
        if cancel_after is not None:
            await asyncio.sleep(cancel_after)
            task.cancel()
        return await task

    with asyncio.Runner(loop_factory=Clock.VIRTUAL.new_loop) as runner:
        return runner.run(around())


async def answers_in_time():
    await asyncio.sleep(1)
    return "answer"


async def never_answers():
    await asyncio.sleep(10**6)


async def answers_when_cancelled():
    try:
        await asyncio.sleep(10**6)
    except asyncio.CancelledError:
        return "late"


async def fails_when_cancelled():
    try:
        await asyncio.sleep(10**6)
    except asyncio.CancelledError:
        raise ValueError from None


async def tries_again():
    for _ in range(3):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10**6)


async def exits():
    raise SystemExit


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        (answers_in_time, "answer"),
        (never_answers, DeadlinePassed),
        (answers_when_cancelled, DeadlinePassed),
        (fails_when_cancelled, DeadlinePassed),
        (tries_again, DeadlinePassed),
        (exits, SystemExit),
    ],
)
def test_a_call_ends_in_one_way_and_what_follows_does_not_notice(call, outcome):
    assert play(call) == (outcome, "left in peace")


@pytest.mark.parametrize("seconds", [10.0, None])
def test_a_cancellation_from_elsewhere_goes_through(seconds):
    assert play(never_answers, cancel_after=3.0, seconds=seconds)[0] is asyncio.CancelledError


@pytest.mark.parametrize("inner", [2.0, 7.0])
def test_of_two_deadlines_each_ends_its_own_block(inner):
    ended = []

    async def two():
        async with Deadline(5.0):
            with contextlib.suppress(DeadlinePassed):
                async with Deadline(inner):
                    await asyncio.sleep(100)
            ended.append(asyncio.get_running_loop().time())
            await asyncio.sleep(100)

    async def outer():
        began = asyncio.get_running_loop().time()
        with pytest.raises(DeadlinePassed):
            await two()
        assert ended == ([began + inner] if inner < 5 else [])
        return asyncio.get_running_loop().time() - began

    with asyncio.Runner(loop_factory=Clock.VIRTUAL.new_loop) as runner:
        assert runner.run(outer()) == 5.0
