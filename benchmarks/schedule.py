"""The manager's schedule in virtual time: seconds per step beside ROLL's and beside the order-statistics bound.

The settings are those under which ROLL's own scheduler was measured for this project: 256 trajectories a step, five
turns of max(0, N(10, 5)) seconds each, the agent takes no time. "slow": 0.2 % of turns take 20 times as long.
"stop": 0.1 % of episodes hang for ever in one of their turns; a step deadline finds them, and they are replayed.

The bound. Let T be the time that one member takes by itself, hangs, deadline and replay included. Members are
independent and no schedule knows a T before it has passed, so with G + g groups of n + m members that all begin at
once, none can have a batch before the G-th smallest, over groups, of the n-th smallest T in the group. Its mean is
estimated here from draws of T alone, without the manager.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import statistics
from typing import Any

import numpy as np
import numpy.typing
from common import header, save, table

from rollenv.agents.base import Action, Session
from rollenv.rollout.clock import Clock
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import Avoid, EnvFailure, EnvResult, avoid_none

Floats = np.typing.NDArray[np.float64]
TURNS, GROUPS, SIZE = 5, 32, 8
DEADLINE = 60.0
SHAPES = {"32x8": (0, 0), "36x8": (4, 0), "32x(8+1)": (0, 1), "32x(8+4)": (0, 4), "36x(8+4)": (4, 4)}
#: Seconds per step that ROLL's classes took; blocked: in how many of 5 runs it never ended.
ROLL = {
    "plain": {"32x8": "79.4", "36x8": "78.5", "32x(8+1)": "72.3", "32x(8+4)": "64.0", "36x(8+4)": "61.5"},
    "slow": {"32x8": "288", "36x8": "190", "32x(8+1)": "96", "32x(8+4)": "67", "36x(8+4)": "67"},
    "stop": {"32x8": "blocked 5/5", "36x8": "blocked 4/5", "32x(8+1)": "not blocked", "32x(8+4)": "not blocked"}
    | {"36x(8+4)": "not blocked"},
}
CELLS = [("plain", None), ("slow", None), ("slow", DEADLINE), ("stop", DEADLINE)]
FAULTS = {"plain": (0.0, 0.0), "slow": (0.002, 0.0), "stop": (0.0, 0.001)}


class Latencies:
    """Draws how long turns take."""

    def __init__(self, seed: int, slow: float, stop: float, mu: float = 10.0, sigma: float = 5.0):
        self.rng = np.random.default_rng(seed)
        self.slow, self.stop, self.mu, self.sigma = slow, stop, mu, sigma

    def episode(self, turns: int = TURNS) -> list[float]:
        """Seconds of each turn; infinite where it hangs."""
        times = np.maximum(0.0, self.rng.normal(self.mu, self.sigma, turns))
        times[self.rng.random(turns) < self.slow] *= 20
        if self.rng.random() < self.stop:
            times[self.rng.integers(turns)] = math.inf
        return times.tolist()


class TimedWorkers:
    """Environments that do nothing but take their time. The real manager plays them, as it does any others."""

    interruptible = True

    def __init__(self, latencies: Latencies):
        self.latencies = latencies
        #: Total seconds of the turns of every environment since the start of the step.
        self.totals: list[float] = []

    async def open(self, task: Task, *, views: bool = False, avoid: Avoid = avoid_none) -> TimedEnv:
        times = self.latencies.episode(task.kwargs["turns"])
        self.totals.append(sum(times))
        return TimedEnv(times)

    async def aclose(self) -> None:
        pass

    def report(self) -> list[dict[str, Any]]:
        return []


class TimedEnv:
    worker = "timer"

    def __init__(self, times: list[float]):
        self.times, self.turn = times, 0

    async def reset(self) -> EnvResult:
        return EnvResult("0")

    async def step(self, action: str) -> EnvResult:
        seconds = self.times[self.turn]
        if seconds == math.inf:
            await asyncio.get_running_loop().create_future()
        if seconds:
            await asyncio.sleep(seconds)
        self.turn += 1
        return EnvResult(str(self.turn), terminated=self.turn == len(self.times))

    async def call(self, method: str, *args: Any) -> Any:
        raise NotImplementedError(method)

    async def overdue(self, failure: EnvFailure) -> EnvFailure:
        return failure

    def close(self) -> None:
        pass

    abandon = close


class Wait(Session):
    """Answers after a fixed time."""

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds

    def start(self, env: object, seed: int) -> Session:
        return self

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return Action("go")


def played(shape: str, fault: str, seed: int, steps: int, deadline: float | None) -> list[tuple[float, float]]:
    """Return the seconds of each step under the manager, and of the best schedule of the same samples without hangs."""
    extra_groups, extra_members = SHAPES[shape]
    workers = TimedWorkers(Latencies(seed, *FAULTS[fault]))
    source = (Task("timed", n, {"turns": TURNS}) for n in itertools.count())

    async def run() -> list[tuple[float, float]]:
        clock, took = asyncio.get_running_loop().time, []
        for _ in range(steps):
            workers.totals.clear()
            began = clock()
            batch = await manager.batch_async(
                source, GROUPS, SIZE, extra_groups=extra_groups, extra_members=extra_members
            )
            assert len(batch) == GROUPS
            assert all(len(group.complete) == SIZE for group in batch)
            drawn = np.array(workers.totals[: (GROUPS + extra_groups) * (SIZE + extra_members)])
            took.append((clock() - began, smallest(drawn, shape)))
        return took

    limits = EpisodeLimits(step=deadline, max_backoff=0.0)
    with RolloutManager(Wait(), workers, limits=limits, clock=Clock.VIRTUAL) as manager:
        return manager.run(run())


def smallest(times: Floats, shape: str) -> float:
    """The least step for given times of all members, those of a group next to each other."""
    extra_groups, extra_members = SHAPES[shape]
    by_group = times.reshape(GROUPS + extra_groups, SIZE + extra_members)
    return float(np.sort(np.sort(by_group, axis=1)[:, SIZE - 1])[GROUPS - 1])


def alone(latencies: Latencies, deadline: float | None) -> float:
    """T: seconds that one member takes by itself. After a hang all earlier turns are played again."""
    total = 0.0
    while True:
        for seconds in latencies.episode():
            if deadline is not None and seconds > deadline:
                total += deadline
                break
            total += seconds
        else:
            return total


def bound(shape: str, fault: str, deadline: float | None, draws: int) -> tuple[float, float]:
    """Mean and standard error of the smallest possible step."""
    extra_groups, extra_members = SHAPES[shape]
    latencies = Latencies(999, *FAULTS[fault])
    members = (GROUPS + extra_groups) * (SIZE + extra_members)
    steps = [smallest(np.array([alone(latencies, deadline) for _ in range(members)]), shape) for _ in range(draws)]
    return float(np.mean(steps)), float(np.std(steps) / math.sqrt(draws))


def redundancy(steps: int, seeds: int, draws: int) -> str:
    rows = []
    for (fault, deadline), shape in itertools.product(CELLS, SHAPES):
        pairs = [p for seed in range(seeds) for p in played(shape, fault, seed, steps, deadline)]
        took = [seconds for seconds, _ in pairs]
        paired = "" if deadline else f"{sum(took) / sum(best for _, best in pairs):.4f}"
        least, error = bound(shape, fault, deadline, draws)
        mean, noise = statistics.fmean(took), statistics.stdev(took) / math.sqrt(len(took))
        name = fault if deadline is None else f"{fault}, deadline {deadline:.0f} s"
        theirs = ROLL[fault][shape] if fault == "stop" or deadline is None else ""
        figures = [f"{mean:.1f} ± {noise:.1f}", f"{least:.1f} ± {error:.1f}", f"{mean / least:.3f}"]
        rows.append([name, shape, theirs, *figures, paired])
    head = ["faults", "groups", "ROLL, s/step", "rollenv, s/step", "bound", "rollenv/bound", "on the same draws"]
    return table(head, rows)


def against_barrier(repeats: int) -> str:
    """Each episode at its own pace against all waiting for the slowest in every turn."""
    rows = []
    for (envs, turns, agent), sigma in itertools.product([(256, 10, 0), (256, 30, 0), (256, 20, 2)], (1, 3, 5, 7, 10)):
        took, barrier = [], []
        for seed in range(repeats):
            workers = TimedWorkers(Latencies(seed, 0.0, 0.0, sigma=sigma))
            limits = EpisodeLimits(step=None)
            with RolloutManager(Wait(agent), workers, limits=limits, clock=Clock.VIRTUAL) as manager:
                took.append(manager.run(_seconds(manager, envs, turns)))
            barrier.append(_barrier(envs, turns, agent, Latencies(seed, 0.0, 0.0, sigma=sigma)))
        draws = np.maximum(0.0, np.random.default_rng(10_000).normal(10.0, sigma, (500, envs, turns)))
        waiting = draws.max(1).sum(1).mean() + turns * agent
        theory = waiting / (draws.sum(2).max(1).mean() + turns * agent)
        rows.append(
            [
                f"{envs}/{turns}/{agent}",
                sigma,
                f"{statistics.fmean(barrier):.1f}",
                f"{statistics.fmean(took):.1f}",
                f"{statistics.fmean(barrier) / statistics.fmean(took):.2f}",
                f"{theory:.2f}",
            ]
        )
    head = ["environments/turns/agent s", "sigma", "barrier, s", "rollenv, s", "ratio", "theory"]
    return table(head, rows)


async def _seconds(manager: RolloutManager, envs: int, turns: int) -> float:
    clock = asyncio.get_running_loop().time
    began = clock()
    await manager.collect_async([Task("timed", n, {"turns": turns}) for n in range(envs)])
    return clock() - began


def _barrier(envs: int, turns: int, agent: float, latencies: Latencies) -> float:
    """The same environments stepped together, under the same clock."""

    async def run() -> float:
        clock = asyncio.get_running_loop().time
        began = clock()
        played = [TimedEnv(latencies.episode(turns)) for _ in range(envs)]
        for _ in range(turns):
            await asyncio.sleep(agent)
            await asyncio.gather(*(env.step("go") for env in played))
        return clock() - began

    with asyncio.Runner(loop_factory=Clock.VIRTUAL.new_loop) as runner:
        return runner.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=2000, help="for the bound")
    args = parser.parse_args()
    text = f"""# The schedule in virtual time

{header()}
## Redundancy: 256 trajectories a step, {TURNS} turns of max(0, N(10, 5)) s, {args.steps} steps, {args.seeds} seeds

{redundancy(args.steps, args.seeds, args.draws)}
± is the standard error of the mean. ROLL: its own classes under a virtual clock, steady state, as measured for this
project. Where there is a deadline, the bound has it too, and the same replays. "On the same draws": the sum of the
steps over the sum of the least possible steps for the very times that were drawn, which takes the noise out.

## Each at its own pace, against a barrier in every turn

{against_barrier(args.seeds)}
theory: E[sum over turns of the slowest] / E[slowest sum over turns], from 500 independent draws.
"""
    save("schedule", text)


if __name__ == "__main__":
    main()
