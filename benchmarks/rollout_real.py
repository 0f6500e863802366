"""The schedule in real time, in real processes that are killed and stopped; and chaos: a worker killed every second."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import signal
import statistics
import time
from collections import Counter
from typing import Any

from common import header, save, table
from latency_env import ID, checked, register
from schedule import GROUPS, SHAPES, SIZE

from rollenv.agents.base import Action, Session
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Group, Task
from rollenv.rollout.workers.processes import ProcessWorkers

SCALE = 0.01
FAULTS: dict[str, dict[str, float]] = {"plain": {}, "slow": {"slow": 0.002}, "stop": {"stop": 0.001}, "signals": {}}


class Player(Session):
    """Answers with its member's own words, at once."""

    def __init__(self, seed: int = 0):
        self.rng = random.Random(seed)

    def start(self, env: object, seed: int) -> Session:
        return Player(seed)

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        return Action(f"{self.rng.random()}")


async def assassin(pool: ProcessWorkers, every: float, signals: tuple[int, ...], count: Counter[str]) -> None:
    """Send a signal to a random worker now and then."""
    rng = random.Random(0)
    for number in itertools.cycle(signals):
        await asyncio.sleep(every)
        pids = [r["pid"] for r in pool.report() if r["state"] == "up"]
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(pids), number)
                count[signal.Signals(number).name] += 1


def check(groups: list[Group]) -> int:
    """AssertionError if a trajectory is lost, doubled, mixed or changed; how many there are."""
    assert len({g.task.seed for g in groups}) == len(groups)
    sums = [checked(t) for g in groups for t in g]
    assert len(set(sums)) == len(sums), "a trajectory came twice"
    assert all(t.task == g.task for g in groups for t in g)
    return len(sums)


def steps(shape: str, fault: str, number: int) -> tuple[list[float], Counter[str], int]:
    """Seconds of each step, the signals that were sent, and replays."""
    extra_groups, extra_members = SHAPES[shape]
    sent: Counter[str] = Counter()
    tasks = (Task(ID, n, {"mu": 10 * SCALE, "sigma": 5 * SCALE, **FAULTS[fault]}) for n in itertools.count())

    async def run(manager: RolloutManager) -> tuple[list[float], int]:
        killer = None
        took, replays = [], 0
        for n in range(number + 1):
            began = time.perf_counter()
            batch = await manager.batch_async(
                tasks, GROUPS, SIZE, extra_groups=extra_groups, extra_members=extra_members
            )
            assert check(batch) == GROUPS * SIZE
            replays += sum(t.replays for g in batch for t in g)
            if n:  # the first one also starts the processes
                took.append(time.perf_counter() - began)
            elif fault == "signals":
                killer = asyncio.create_task(assassin(pool, 1.0, (signal.SIGKILL, signal.SIGSTOP), sent))
        if killer:
            killer.cancel()
        return took, replays

    limits = EpisodeLimits(step=60 * SCALE if fault == "stop" else 60.0, max_backoff=0.0)
    with (
        ProcessWorkers(8, envs_per_process=64, ping_every=0.2, lost_after=1.0) as pool,
        RolloutManager(Player(), pool, limits=limits) as manager,
    ):
        took, replays = manager.run(run(manager))
    return took, sent, replays


def real_time(number: int) -> str:
    rows = []
    for fault, shape in itertools.product(FAULTS, SHAPES):
        took, sent, replays = steps(shape, fault, number)
        signals = ", ".join(f"{n} {name}" for name, n in sent.items())
        rows.append([fault, shape, statistics.median(took), statistics.fmean(took), max(took), replays, signals])
        print(rows[-1], flush=True)
    return table(["faults", "groups", "median s/step", "mean", "longest", "replays kept", "signals sent"], rows)


def chaos(episodes: int) -> str:
    """Play the same episodes undisturbed and with one worker in ten killed every second."""
    tasks = [Task(ID, n, {"turns": 10}) for n in range(episodes)]
    results, rows = [], []
    for disturbed in (False, True):
        sent: Counter[str] = Counter()

        async def run(manager: RolloutManager, pool: ProcessWorkers, disturbed: bool, sent: Counter[str]) -> Any:
            await manager.collect_async(tasks[:40])  # starts the processes
            killer = asyncio.create_task(assassin(pool, 1.0, (signal.SIGKILL,), sent)) if disturbed else None
            began = time.perf_counter()
            groups = await manager.collect_async(tasks)
            if killer:
                killer.cancel()
            return groups, time.perf_counter() - began

        limits = EpisodeLimits(max_backoff=0.0)
        with (
            ProcessWorkers(10, envs_per_process=32, ping_every=0.5, lost_after=10.0) as pool,
            RolloutManager(Player(), pool, limits=limits) as manager,
        ):
            groups, seconds = manager.run(run(manager, pool, disturbed, sent))
        assert check(groups) == episodes
        results.append(groups)
        replays = [t.replays for g in groups for t in g]
        rows.append(
            [
                "one killed every second" if disturbed else "undisturbed",
                seconds,
                episodes / seconds,
                sum(sent.values()),
                sum(replays),
                max(replays),
            ]
        )
    assert results[0] == results[1], "a replayed episode differs from the undisturbed one"
    text = table(["", "seconds", "episodes/s", "workers killed", "replays", "most of one episode"], rows)
    share = rows[0][1] / rows[1][1]
    return f"{text}\nThroughput: {share:.2f} of the undisturbed run, whose {episodes} trajectories these all equal.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=2000)
    args = parser.parse_args()
    register()
    text = f"""# The schedule in real time and real processes

{header()}
## Redundancy: 256 trajectories a step, 5 turns of max(0, N(0.1, 0.05)) s, 8 processes

{real_time(args.steps)}
The settings of the schedule in virtual time, a hundred times as fast. slow: 0.2 % of turns take 20 times as long; stop:
0.1 % of episodes hang for ever, the step deadline is {60 * SCALE} s; signals: every second a random process gets
SIGKILL or SIGSTOP, in turn. After every step all trajectories were checked: none lost, doubled, mixed or changed.

## Chaos: {args.episodes} episodes of 10 turns of 0.1 s on 10 processes, one of which is killed every second

{chaos(args.episodes)}"""
    save("rollout_real", text)


if __name__ == "__main__":
    main()
