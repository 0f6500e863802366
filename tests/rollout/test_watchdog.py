"""Who cancelled a call: five causes that look the same to the call, and what each becomes."""

import asyncio

import pytest

from rollenv.rollout.clock import Clock
from rollenv.rollout.watchdog import Deadline, DeadlinePassed, StrayError, Watchdog


def play(call, *, cancel_after=None, seconds=10.0, episode=None):
    """What became of a call: its answer or the class of its error, and whether the next await was left in peace."""
    cancelled = False

    async def main():
        watchdog = Watchdog(episode)
        try:
            async with Deadline(watchdog, seconds, lambda error: cancelled, lambda: cancelled):
                outcome = await call()
        except BaseException as error:
            outcome = type(error)
        finally:
            watchdog.stop()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return outcome, "hit"
        return outcome, "left in peace"

    async def around():
        nonlocal cancelled
        task = asyncio.create_task(main())
        if cancel_after is not None:
            await asyncio.sleep(cancel_after)
            cancelled = True
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
        (answers_when_cancelled, "late"),
        (fails_when_cancelled, ValueError),
        (cancels_itself, StrayError),
        (exits, StrayError),
        (cancels_itself_and_answers, StrayError),
    ],
)
def test_a_call_ends_in_one_way_and_what_follows_does_not_notice(call, outcome):
    assert play(call) == (outcome, "left in peace")


def test_what_the_rollout_cancels_goes_through():
    assert play(never_answers, cancel_after=3.0)[0] is asyncio.CancelledError
    assert play(never_answers, cancel_after=3.0, seconds=None)[0] is asyncio.CancelledError


def test_the_deadline_of_an_episode_is_not_that_of_a_call():
    assert play(never_answers, episode=5.0)[0] is asyncio.CancelledError


def test_a_deadline_around_another_one_is_restored():
    async def outer():
        watchdog = Watchdog(None)
        began = asyncio.get_running_loop().time()
        inner = Deadline(watchdog, 2.0, lambda error: False, lambda: False)
        try:
            async with Deadline(watchdog, 5.0, lambda error: False, lambda: False):
                with pytest.raises(DeadlinePassed):
                    async with inner:
                        await asyncio.sleep(100)
                await asyncio.sleep(100)
        except DeadlinePassed:
            return asyncio.get_running_loop().time() - began
        finally:
            watchdog.stop()

    with asyncio.Runner(loop_factory=Clock.VIRTUAL.new_loop) as runner:
        assert runner.run(outer()) == 5.0
