"""What the manager itself costs for each turn, and how that grows with the number of environments.

Every environment takes ten turns; the agent answers after 10 ms and computes nothing; the environments answer at once.
What is left of the processor's time is the manager's (and asyncio's timers'). Python's garbage collector is set as
``rollenv train`` sets it; by default it walks over all running episodes so often that it takes half of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import time

from common import header, save, table
from schedule import TimedWorkers, Wait

from rollenv.rollout.episode import Limits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task

TURNS = 10


class Instant:
    """Latencies of nothing."""

    def episode(self, turns: int) -> list[float]:
        return [0.0] * turns


def measure(envs: int, agent: Wait, limits: Limits) -> tuple[float, float, float]:
    """(wall seconds, processor seconds, MiB more at the peak) of one rollout."""
    tasks = [Task("timed", n, {"turns": TURNS}) for n in range(envs // 8)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with RolloutManager(agent, TimedWorkers(Instant()), limits=limits) as manager:  # type: ignore[arg-type]
        wall, cpu = time.perf_counter(), time.process_time()
        manager.collect(tasks, 8)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return wall, cpu, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def asyncio_alone(envs: int) -> float:
    """Processor seconds of as many coroutines that only wait as the agents do."""

    async def wait() -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0.01)

    async def run() -> None:
        await asyncio.gather(*(wait() for _ in range(envs)))

    began = time.process_time()
    asyncio.run(run())
    return time.process_time() - began


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    rows = []
    for envs in (104, 400, 2000, 4000, 10_000):
        alone = sorted(asyncio_alone(envs) for _ in range(3))[1]
        for name, limits in (("none", Limits(step=None, reset=None)), ("120 s a step", Limits())):
            runs = sorted(measure(envs, Wait(0.01), limits) for _ in range(3))
            wall, cpu, memory = runs[1]
            turns = envs * TURNS
            rows.append([envs, name, wall, TURNS * 0.01, 1e6 * cpu / turns, 1e6 * (cpu - alone) / turns, memory])
    head = ["environments", "deadlines", "wall, s", "least, s", "processor, µs/turn", "of it ours", "more memory, MiB"]
    notes = (
        "One process and one thread; 10 turns, of which the agent takes 10 ms; medians of three. least: its time. of\n"
        "it ours: less what coroutines cost that only wait as long.\n"
    )
    save("rollout_overhead", f"# What the manager costs\n\n{header()}\n{table(head, rows)}\n{notes}")


if __name__ == "__main__":
    main()
