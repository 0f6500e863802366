"""A call of somebody else's code ends in one way, whatever it does to its task, and what follows does not notice."""

import asyncio

import pytest

from rollenv.rollout.calls import DeadlinePassed, StrayError, await_call
from rollenv.rollout.clock import Clock


def play(call, *, cancel_after=None, seconds=10.0):
    """What became of a call: its answer or the class of its error, and whether the next await was left in peace."""

    async def main():
        try:
            outcome = await await_call(call(), seconds)
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


async def leaves_at_the_third_time():
    for _ in range(3):
        try:
            await asyncio.sleep(10**6)
        except asyncio.CancelledError:
            continue


async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(1)


async def cancels_itself_and_answers():
    asyncio.current_task().cancel()
    return "answer"


async def exits():
    raise SystemExit


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        (answers_in_time, "answer"),
        (never_answers, DeadlinePassed),
        (answers_when_cancelled, DeadlinePassed),
        (fails_when_cancelled, DeadlinePassed),
        (leaves_at_the_third_time, DeadlinePassed),
        (cancels_itself, StrayError),
        (exits, StrayError),
        (cancels_itself_and_answers, StrayError),
    ],
)
def test_a_call_ends_in_one_way_and_what_follows_does_not_notice(call, outcome):
    assert play(call) == (outcome, "left in peace")


@pytest.mark.parametrize("seconds", [10.0, None])
@pytest.mark.parametrize("call", [never_answers, answers_when_cancelled, leaves_at_the_third_time])
def test_what_the_rollout_cancels_goes_through(call, seconds):
    assert play(call, cancel_after=3.0, seconds=seconds)[0] is asyncio.CancelledError


def test_a_call_within_a_call_has_a_deadline_of_its_own():
    async def outer():
        with pytest.raises(DeadlinePassed):
            await await_call(asyncio.sleep(100), 2.0)
        await asyncio.sleep(100)

    async def main():
        with pytest.raises(DeadlinePassed):
            await await_call(outer(), 5.0)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=Clock.VIRTUAL.new_loop) as runner:
        assert runner.run(main()) == 5.0
