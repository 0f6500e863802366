"""The pool's places: whoever waits, is cancelled or loses a worker, no place is lost and none is given twice."""

import asyncio
import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from troubled import ID

from rollenv.rollout.clock import VirtualLoop
from rollenv.rollout.types import Task
from rollenv.rollout.workers import messages
from rollenv.rollout.workers.base import EnvFailure, EnvResult
from rollenv.rollout.workers.host import EnvHost
from rollenv.rollout.workers.pool import PoolWorker, WorkerPool, WorkersBroken

RESULT = messages.encode("", EnvResult("text"))


class Here(PoolWorker):
    """A worker in this event loop: its answers take a while, its environments are real where the pool says so."""

    def __init__(self, pool, slot):
        super().__init__(pool, slot)
        self.host = EnvHost() if pool.real else None
        asyncio.get_running_loop().call_later(pool.rng.random(), self.on_message)

    def send(self, request, operation, number, args):
        def give():
            if not self.death:
                self.on_answer(request, self.host.answer(operation, number, args) if self.host else RESULT)

        asyncio.get_running_loop().call_later(self.pool.rng.choice([0.0, 0.5]), give)

    def ping(self):
        if not self.death:
            self.on_message()

    def kill(self):
        asyncio.get_running_loop().call_soon(self.on_end, "it was killed")


class Pool(WorkerPool):
    def __init__(self, names, rng, envs, *, real=True):
        self.real = real
        super().__init__(names, envs_per_worker=envs, ping_every=50.0, lost_after=200.0, close_deadline=5.0)
        self.rng = rng

    def start_worker(self, slot):
        return Here(self, slot)


class Usage:
    """How many environments are in every worker, as their players know it."""

    def __init__(self, pool):
        self.pool, self.now, self.played = pool, {}, 0

    async def play(self, seed, alone):
        env = await self.pool.open(Task(ID, seed), alone=alone)
        worker = env._worker
        self.now[worker] = self.now.get(worker, 0) + 1
        assert self.now[worker] <= (1 if alone else self.pool.envs_per_worker)
        try:
            with contextlib.suppress(EnvFailure):
                await env.reset()
                await env.step("go")
            self.played += 1
        finally:
            self.now[worker] -= 1
            env.close()


async def schedule(rng, workers, envs, players, deaths, real):
    """Players come, some are cancelled, also in the tick in which they get a place; workers die."""
    pool = Pool([f"w{i}" for i in range(workers)], rng, envs, real=real)
    usage = Usage(pool)
    playing = []
    for seed in range(players):
        playing.append(asyncio.create_task(usage.play(seed, alone=rng.random() < 0.1)))
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.1, 0.7]))
        for task in playing:
            if rng.random() < 0.15:
                if rng.random() < 0.5:
                    pool.wake()  # woken and cancelled in one tick
                task.cancel()
        if deaths and rng.random() < 0.1 and (worker := pool.slots[0].worker):
            worker.end("a schedule said so")
    await asyncio.wait_for(asyncio.gather(*playing, return_exceptions=True), 1000.0)
    # Every place is there again: as many as fit are given at once.
    await asyncio.sleep(100.0)
    assert [slot.worker.load for slot in pool.slots] == [0] * workers
    assert not pool._alone
    envs_now = await asyncio.wait_for(asyncio.gather(*(pool.open(Task(ID, 0)) for _ in range(workers * envs))), 100.0)
    for env in envs_now:
        env.close()
    for task in playing:
        if task.done() and not task.cancelled() and task.exception():
            raise task.exception()
    pool.close()


def run(seed, workers, envs, players, deaths, *, real=True):
    loop = VirtualLoop()
    try:
        loop.run_until_complete(schedule(random.Random(seed), workers, envs, players, deaths, real))
    finally:
        loop.close()


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3), st.integers(1, 20), st.booleans())
def test_no_place_is_lost_or_given_twice(seed, workers, envs, players, deaths):
    run(seed, workers, envs, players, deaths)


@pytest.mark.slow
@pytest.mark.parametrize("schedules", [1000, pytest.param(10_000, marks=pytest.mark.integration)])
def test_no_place_is_lost_or_given_twice_in_thousands_of_schedules(schedules):
    rng = random.Random(schedules)
    for _ in range(schedules):
        run(rng.random(), rng.randint(1, 3), rng.randint(1, 2), rng.randint(1, 6), rng.random() < 0.5, real=False)


def test_one_that_is_woken_and_cancelled_in_one_tick_passes_its_place_on():
    async def main():
        pool = Pool(["w"], random.Random(0), 1)
        first = await pool.open(Task(ID, 0))
        second, third = (asyncio.ensure_future(pool.open(Task(ID, n))) for n in (1, 2))
        await asyncio.sleep(0)
        first._worker.on_env_gone()
        second.cancel()
        env = await asyncio.wait_for(third, 10.0)
        env.close()
        pool.close()

    loop = VirtualLoop()
    loop.run_until_complete(main())
    loop.close()


class Stillborn(Here):
    """A worker that ends before it is ready."""

    def __init__(self, pool, slot):
        super().__init__(pool, slot)
        asyncio.get_running_loop().call_soon(self.end, "it was stillborn")


def test_workers_of_their_own_that_end_at_once_are_an_error():
    pool = Pool(["w"], random.Random(0), 1, real=False)
    started = []

    async def play():
        with contextlib.closing(pool):
            await pool.open(Task(ID, 0))  # the pool's own worker is well
            pool.start_worker = lambda slot: started.append(slot) or Stillborn(pool, slot)
            for _ in range(100):
                env = await pool.open(Task(ID, 0), alone=True)
                with pytest.raises(EnvFailure):
                    await env.reset()
                env.close()

    with pytest.raises(WorkersBroken, match="stillborn"), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(play())
    assert len(started) == 5
