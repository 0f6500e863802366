"""Slots of workers, whatever the workers are: who gets one, and when it is started again."""

import asyncio

import pytest

from rollenv import UsageError
from rollenv.rollout.clock import Clock
from rollenv.rollout.workers.supervisor import SETTLE_SECONDS, Slot, Supervisor, restart_delay


class Seats(Supervisor):
    """One worker with seats; it starts when the test says so."""

    def __init__(self, seats):
        super().__init__([Slot("only")])
        self.free = seats

    def start_slot(self, slot):
        pass

    async def watch(self):
        pass

    def take(self):
        if not self.free:
            return None
        self.free -= 1
        return self.free

    def give_back(self, taken):
        self.free += 1
        self.wake()


def run(coroutine):
    with asyncio.Runner(loop_factory=Clock.VIRTUAL.new_loop) as runner:
        return runner.run(coroutine)


def test_callers_are_served_in_their_order_and_a_cancelled_one_takes_nothing():
    async def main():
        seats, served = Seats(0), []
        seats.attach()
        seats.settle()

        async def caller(name):
            await seats.acquire(seats.take)
            served.append(name)

        first, second, third = (asyncio.create_task(caller(name)) for name in "abc")
        await asyncio.sleep(1)
        seats.give_back(None)  # assigned to the first, which does not know it yet
        first.cancel()
        await asyncio.sleep(1)
        assert served == ["b"]
        seats.give_back(None)
        await asyncio.gather(second, third)
        assert (served, seats.free) == (["b", "c"], 0)

    run(main())


def test_nobody_is_served_before_all_have_started_or_it_takes_too_long():
    async def main(ready):
        seats = Seats(1)
        seats.attach()
        began = seats.time()
        if ready:
            seats.slots[0].tried = True
            asyncio.get_running_loop().call_later(1.0, seats.on_change)
        await seats.acquire(seats.take)
        return seats.time() - began

    assert run(main(ready=True)) == 1.0
    assert run(main(ready=False)) == SETTLE_SECONDS


def test_an_error_reaches_its_caller_only():
    async def main():
        seats = Seats(1)
        seats.attach()
        seats.settle()

        def refuse():
            raise ValueError("no")

        answers = await asyncio.gather(seats.acquire(refuse), seats.acquire(seats.take), return_exceptions=True)
        assert [type(answer) for answer in answers] == [ValueError, int]

    run(main())


def test_a_second_loop_waits_until_the_first_is_closed():
    seats = Seats(1)

    async def attach():
        seats.attach()

    with asyncio.Runner() as first:
        first.run(attach())
        with pytest.raises(UsageError):
            run(attach())
    run(attach())


def test_the_delay_of_a_restart_doubles_up_to_a_limit():
    assert [restart_delay(n, 0.5, 3.0) for n in (0, 1, 2, 3, 4, 5000)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
