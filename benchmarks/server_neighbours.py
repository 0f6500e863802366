"""How long honest sessions wait for a step beside hostile ones, on one server.

The honest ones echo and play Sokoban, and think a little between turns. A hostile session hangs, dies, answers with
50 MB, forks, fills the memory, or nests 100,000 lists, and does so again as soon as it may.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sys
import time
from collections import Counter

import numpy as np
from common import ROOT, header, save, table

from rollenv.core.errors import RollenvError
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import EnvFailure
from rollenv.rollout.workers.remote import RemoteWorkers

sys.path.insert(0, str(ROOT / "tests" / "serve"))
from serving import Served

HONEST = {"echo": "test:Echo-v0", "Sokoban": "game:Sokoban-v0-easy"}
#: Requests of hostile sessions.
HOSTILE = {
    "hangs": "hang",
    "computes for ever": "spin",
    "dies": "die",
    "returns 50 MB": "huge 50000000",
    "forks": "fork",
    "fills memory": "fill 20000000",
    "nests 100,000 deep": "deep 100000",
}
#: Seconds that an honest agent thinks about a turn, and a hostile one waits before it is so again.
THINK, AGAIN = 0.05, 0.2


async def honest(workers: RemoteWorkers, env_id: str, seed: int, end: float, times: list[float]) -> None:
    """Play random or invented actions until the end, one at least; the time of each step in milliseconds."""
    rng = random.Random(seed)
    env = await workers.open(Task(env_id, seed))
    await env.reset()
    while not times or time.perf_counter() < end:
        await asyncio.sleep(rng.uniform(0, 2 * THINK))
        began = time.perf_counter()
        seen = await env.step("hello" if env_id.startswith("test:") else f"\\boxed{{{rng.choice(['left', 'right'])}}}")
        times.append(1000 * (time.perf_counter() - began))
        if seen.terminated or seen.truncated:
            env.close()
            env = await workers.open(Task(env_id, rng.randrange(1000)))
            await env.reset()
    env.close()


async def hostile(workers: RemoteWorkers, action: str, end: float, told: Counter[str]) -> None:
    """Do harm until the end; what became of it."""
    while time.perf_counter() < end:
        env = await workers.open(Task("test:Moody-v0", 1))
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + end - time.perf_counter()):
                await env.reset()
                while True:
                    await env.step(action)
                    told["answered"] += 1
                    await asyncio.sleep(AGAIN)
        except EnvFailure as failure:
            told[failure.kind] += 1
        except (RollenvError, TimeoutError) as error:
            told[type(error).__name__] += 1
        env.close()
        await asyncio.sleep(AGAIN)


async def measured(address: str, actions: list[str], sessions: int, seconds: float, told: Counter[str]) -> list[float]:
    """p50, p99 and the longest of honest steps beside hostile ones, in milliseconds."""
    times = list[float]()
    good, bad = RemoteWorkers(address, envs_per_server=4096), RemoteWorkers(address, envs_per_server=4096)
    end = time.perf_counter() + seconds
    ids = list(HONEST.values())
    async with contextlib.AsyncExitStack() as stack:
        for workers in (good, bad):
            stack.push_async_callback(workers.aclose)
        await asyncio.gather(
            *(honest(good, ids[n % len(ids)], n, end, times) for n in range(sessions)),
            *(hostile(bad, action, end, told) for action in actions),
        )
    return [float(each) for each in np.quantile(times, (0.5, 0.99, 1.0))]


def compared(address: str, actions: list[str], given: argparse.Namespace) -> tuple[object, ...]:
    """The medians over rounds that alternate with ones without hostile sessions, and what became of those."""
    told, without, beside = Counter[str](), [], []
    for _ in range(given.rounds):
        without.append(asyncio.run(measured(address, [], given.sessions, given.seconds, Counter())))
        beside.append(asyncio.run(measured(address, actions, given.sessions, given.seconds, told)))
    pairs = zip(np.median(without, axis=0), np.median(beside, axis=0), strict=True)
    became = ", ".join(f"{name} {count}" for name, count in sorted(told.items()))
    return *(f"{before:.1f} to {after:.1f}" for before, after in pairs), became


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=50, help="honest ones")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    cases = {name: [action] for name, action in HOSTILE.items()} | {"all of them": list(HOSTILE.values())}
    rows: list[tuple[object, ...]] = []
    served = Served("--step-deadline", "3", workers=len(os.sched_getaffinity(0)))
    try:
        asyncio.run(measured(served.address, [], given.sessions, 2.0, Counter()))
        for name, actions in cases.items():
            rows.append((name, *compared(served.address, actions, given)))
            print(*rows[-1], flush=True)
    finally:
        served.stop()
    head = ("hostile neighbour", "p50 ms", "p99 ms", "longest ms", "what became of the hostile steps")
    note = (
        f"{given.sessions} honest sessions for {given.seconds:g} s without a hostile one and as long beside it, "
        f"{given.rounds} times in turn; medians. One server with a worker process for each core and a step deadline "
        "of 3 s. Clients and server share the cores."
    )
    save("server_neighbours", f"{header()}\n{note}\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
