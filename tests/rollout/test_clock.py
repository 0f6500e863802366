"""Virtual time: the same coroutines, the same order, no waiting."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.rollout.clock import Clock, Deadlock


def run(coroutine, clock=Clock.VIRTUAL):
    with asyncio.Runner(loop_factory=clock.new_loop) as runner:
        return runner.run(coroutine)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_sleepers_wake_in_order_and_on_time(delays):
    async def main():
        loop, woke = asyncio.get_running_loop(), []

        async def sleep(delay):
            await asyncio.sleep(delay)
            woke.append((loop.time(), delay))

        await asyncio.gather(*map(sleep, delays))
        return woke

    woke = run(main())
    assert [delay for _, delay in woke] == sorted(delays)
    assert all(now == pytest.approx(delay, abs=1e-6) for now, delay in woke)


def test_hours_pass_at_once_and_timeouts_hold():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.sleep(7200)
        return asyncio.get_running_loop().time()

    began = time.perf_counter()
    assert run(main()) == pytest.approx(3600)
    assert time.perf_counter() - began < 60


def test_waiting_for_what_never_comes_is_an_error_in_virtual_time():
    async def main():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        run(main())


def test_threads_are_refused():
    async def main():
        await asyncio.to_thread(time.sleep, 0)

    with pytest.raises(RuntimeError, match="virtual time"):
        run(main())
