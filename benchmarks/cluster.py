"""Sharded managers: on a local Ray cluster in real time, and on a cluster that is not here in virtual time.

Virtual: 64 nodes with a shard each; every turn takes a log-normal time for the engine and one for the environment,
nodes are lost and come back, new weights suspend every engine. The coordinator, the stream with its bound on staleness,
the managers, the episodes are the code that runs anywhere else; only waiting is not waited for. What processors do
takes no virtual time, so what the coordinator costs is measured beside it.

The bound of a step is the longest of: training; the work of a batch divided by the episodes that may be played at once.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from common import header, save, table
from local_shard import LocalShard

from rollenv.agents.base import Action, Session
from rollenv.rollout.clock import Clock
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.shard import ShardResult
from rollenv.rollout.shards import Fleet, ShardedManager
from rollenv.rollout.stream import RolloutStream
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import EnvFailure, EnvResult

#: Losses a node and hour: 419 unexpected interruptions in 54 days of 2,048 nodes (Llama 3, arXiv 2407.21783, table 5).
PUBLISHED = 419 / (54 * 24 * 2048)

#: Any id: the workers here make no environments.
ID = "game:Sokoban-v0-tiny"


@dataclass(frozen=True)
class Setting:
    """A cluster and how it trains. Times are seconds."""

    nodes: int = 64
    environments: int = 10_000
    """Episodes in play at once, over all nodes."""
    group_size: int = 8
    turns: int = 10
    engine: float = 1.0
    """Median of an answer."""
    environment: float = 2.0
    """Median of a step."""
    sigma: float = 1.0
    train: float = 60.0
    sync: float = 2.0
    staleness: int = 1
    losses: float = PUBLISHED
    """Losses per node and hour."""
    back: float = 120.0
    """Seconds until a lost node is back."""
    extra: float = 0.0
    """Additional groups and members, as a share."""

    @property
    def mean_turn(self) -> float:
        """Mean seconds of a turn with log-normal engine and environment."""
        return (self.engine + self.environment) * math.exp(self.sigma**2 / 2)

    @property
    def groups(self) -> int:
        """Groups of a batch: each step trains on half of the environments."""
        return max(1, self.environments // (2 * self.group_size))

    @property
    def bound(self) -> float:
        """Seconds of a step that no schedule can be below in the mean."""
        work = self.groups * self.group_size * self.turns * self.mean_turn
        return max(self.train + self.sync, work / self.environments + self.sync)


class Timed:
    """An agent, and workers whose environments take their time."""

    interruptible = True

    def __init__(self, setting: Setting, rng: random.Random):
        self.setting, self.rng = setting, rng
        self.version = 0
        self.going = asyncio.Event()
        self.going.set()

    def wait(self, median: float) -> float:
        return median * self.rng.lognormvariate(0, self.setting.sigma)

    # of the agent
    def start(self, env: Any, seed: int) -> Session:
        return Talk(self)

    async def suspend(self) -> None:
        self.going.clear()

    async def update_weights(self, weights: Any = None) -> None:
        await asyncio.sleep(self.setting.sync)
        self.version += 1

    async def resume(self) -> None:
        self.going.set()

    # of the workers
    async def open(self, task: Task, **how: Any) -> TimedEnv:
        return TimedEnv(self)

    async def aclose(self) -> None:
        pass

    def report(self) -> list[dict[str, Any]]:
        return []


class Talk(Session):
    def __init__(self, timed: Timed):
        self.timed = timed

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        await asyncio.sleep(self.timed.wait(self.timed.setting.engine))
        await self.timed.going.wait()
        return Action("go", (1,), (2,), (0.0,), self.timed.version)


class TimedEnv:
    worker = "timer"

    def __init__(self, timed: Timed):
        self.timed, self.turn = timed, 0

    async def reset(self) -> EnvResult:
        return EnvResult("0")

    async def step(self, action: str) -> EnvResult:
        await asyncio.sleep(self.timed.wait(self.timed.setting.environment))
        self.turn += 1
        return EnvResult(str(self.turn), terminated=self.turn == self.timed.setting.turns)

    async def call(self, method: str, *args: Any) -> Any:
        raise NotImplementedError(method)

    async def overdue(self, failure: EnvFailure) -> EnvFailure:
        return failure

    def close(self) -> None:
        pass

    abandon = close


@dataclass
class Outcome:
    """Results of a run."""

    step: float
    """Median virtual seconds of a step."""
    waiting: float
    """Seconds of these spent waiting for the batch."""
    played: float
    """Started episodes per trained episode."""
    lost: int
    """Lost shards."""
    again: int
    """Restarted groups."""
    cpu_ms: float
    """Total processor milliseconds per group."""
    turns_a_second: float
    """Turns per second of virtual time."""


def simulate(setting: Setting, steps: int, seed: int = 0) -> Outcome:
    """Train for some steps in virtual time."""
    rng = random.Random(seed)
    shards: dict[str, LocalShard] = {}

    async def start(name: str) -> LocalShard:
        def build() -> RolloutManager:
            timed = Timed(setting, random.Random(rng.getrandbits(48)))
            return RolloutManager(timed, timed, unhealthy_after=10**9)  # type: ignore[arg-type]

        shards[name] = LocalShard(name, build)
        return shards[name]

    per_node = max(1, setting.environments // (setting.group_size * setting.nodes))
    names = [f"node-{i}" for i in range(setting.nodes)]
    fleet = Fleet(names, start, capacity=2 * per_node, max_losses=10**6, backoff=setting.back, ping_every=0)
    groups = setting.groups
    extra_groups = max(0, setting.environments // setting.group_size - groups)

    async def nodes_fail() -> None:
        while setting.losses:
            await asyncio.sleep(rng.expovariate(setting.losses * setting.nodes / 3600))
            there = [slot for slot in fleet.slots if slot.shard is not None]
            if there:
                rng.choice(there).shard.kill()  # type: ignore[union-attr]

    async def main(manager: ShardedManager) -> tuple[list[float], list[float]]:
        loop = asyncio.get_running_loop()
        tasks = (Task(ID, number) for number in itertools.count())
        members = round(setting.extra * setting.group_size)
        stream = RolloutStream(
            manager,
            tasks,
            groups,
            setting.group_size,
            extra_groups=extra_groups,
            extra_members=members,
            max_staleness=setting.staleness,
        )
        taken, waited = [], []
        async with stream:
            failing = asyncio.create_task(nodes_fail())
            for _ in range(steps):
                began = loop.time()
                await stream.next_batch()
                waited.append(loop.time() - began)
                await asyncio.sleep(setting.train)
                await stream.update_weights()
                taken.append(loop.time() - began)
            failing.cancel()
        return taken, waited

    began = time.process_time()
    with ShardedManager(fleet, clock=Clock.VIRTUAL) as manager:
        taken, waited = manager.run(main(manager))
        cpu = time.process_time() - began
        finished = sum(slot.groups for slot in fleet.slots)
    warm = len(taken) // 3
    seconds = statistics.mean(taken[warm:])
    return Outcome(
        seconds,
        statistics.mean(waited[warm:]),
        (finished + fleet.begun_again) / (groups * steps),
        sum(slot.losses for slot in fleet.slots),
        fleet.begun_again,
        1000 * cpu / max(1, finished),
        groups * setting.group_size * setting.turns / seconds,
    )


def virtual(given: argparse.Namespace) -> str:
    """The table of the cluster that is not here."""
    scale = 1 if given.nodes >= 64 else given.nodes / 64
    many, most = round(10_000 * scale), round(100_000 * scale)
    base = Setting(nodes=given.nodes, environments=many)
    cases = [
        ("64 nodes, 10,000 environments", base),
        ("staleness 0", Setting(nodes=given.nodes, environments=many, staleness=0)),
        ("staleness 2", Setting(nodes=given.nodes, environments=many, staleness=2)),
        ("one member of eight more", Setting(nodes=given.nodes, environments=many, extra=1 / 8)),
        ("heavier tail (sigma 1.5)", Setting(nodes=given.nodes, environments=many, sigma=1.5)),
        ("heavier tail, one member more", Setting(nodes=given.nodes, environments=many, sigma=1.5, extra=1 / 8)),
        ("nodes fail 10,000 times as often", Setting(nodes=given.nodes, environments=many, losses=10_000 * PUBLISHED)),
        ("new weights take 20 s", Setting(nodes=given.nodes, environments=many, sync=20.0)),
        ("training takes 10 s", Setting(nodes=given.nodes, environments=many, train=10.0)),
        ("100,000 environments", Setting(nodes=given.nodes, environments=most)),
    ]
    body = []
    for name, setting in cases:
        steps = given.steps if setting.environments < 50_000 * scale else max(2, given.steps // 3)
        out = simulate(setting, steps)
        body.append(
            (
                name,
                f"{out.step:.0f}",
                f"{setting.bound:.0f}",
                f"{out.step / setting.bound:.2f}",
                f"{out.waiting:.0f}",
                f"{out.played:.2f}",
                out.lost,
                out.again,
                f"{out.turns_a_second:,.0f}",
                f"{out.cpu_ms:.1f}",
            )
        )
        print(body[-1])
    head = ("cluster", "step s", "bound s", "step/bound", "waiting s", "begun/used", "nodes lost", "groups again")
    return table((*head, "turns/s", "CPU ms a group"), body)


def coordinator(groups: int) -> str:
    """Measure the cost of the coordinator alone, with shards that respond immediately."""
    from rollenv.rollout.types import Trajectory

    class Instant(LocalShard):
        async def play(self, key: int, task: Task, size: int, extra_members: int) -> ShardResult:
            await asyncio.sleep(0)
            return ShardResult([Trajectory(task, [], "terminated", member=member) for member in range(size)])

    async def start(name: str) -> Instant:
        return Instant(name, lambda: RolloutManager(Timed(Setting(), random.Random(0))))  # type: ignore[arg-type]

    fleet = Fleet([f"node-{i}" for i in range(64)], start, capacity=64, ping_every=0)
    with ShardedManager(fleet) as manager:
        began = time.process_time()
        manager.batch((Task(ID, n) for n in itertools.count()), groups, 8)
        each = (time.process_time() - began) / groups
    return (
        f"The coordinator alone, with 64 shards that answer at once: {1e6 * each:.0f} us of a processor a group, so "
        f"{1 / each:,.0f} groups a second; with 8 members of 10 turns each, {80 / each:,.0f} turns a second.\n"
    )


# -- real time, on a local Ray cluster ---------------------------------------------------------------------------------


def waiting_manager(turns: int, seconds: float) -> RolloutManager:
    """Built in every shard: environments that only wait, as remote ones do."""
    setting = Setting(turns=turns, engine=0.0, environment=seconds, sigma=0.5)
    timed = Timed(setting, random.Random(0))
    return RolloutManager(timed, timed)  # type: ignore[arg-type]


def real(given: argparse.Namespace) -> str:
    """Turns a second of one manager and of 1, 2 and 4 shards, in turns."""
    import functools
    import os
    from pathlib import Path

    import ray

    from rollenv.rollout.ray_shards import RayShards

    path = os.pathsep.join([str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="error")
    build = functools.partial(waiting_manager, given.turns, given.seconds)
    rates: dict[str, list[float]] = {}
    killed = ""
    try:
        for _ in range(given.rounds):
            rates.setdefault("one manager", []).append(rate(build(), given))
            for count in (1, 2, 4):
                options = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}
                fleet = RayShards(count, build, capacity=given.groups, actor_options=options, backoff=0.1)
                with ShardedManager(fleet) as manager:
                    manager.run(fleet.ready())
                    rates.setdefault(f"{count} shard{'s' * (count > 1)}", []).append(rate(manager, given))
                    if count == 4 and not killed:
                        killed = kill_one(manager, given)
    finally:
        ray.shutdown()
    base = statistics.median(rates["one manager"])
    body = [(name, f"{statistics.median(r):,.0f}", f"{statistics.median(r) / base:.2f}") for name, r in rates.items()]
    return table(("played by", "turns/s", "against one manager"), body) + "\n" + killed


def seeds(n: int) -> Iterator[Task]:
    return (Task(ID, number) for number in range(n))


def rate(manager: RolloutManager, given: argparse.Namespace) -> float:
    """Turns a second over a batch of equal groups, after a small one."""
    manager.batch(seeds(8), 8, 8)
    began = time.perf_counter()
    groups = manager.batch(seeds(given.groups), given.groups, 8)
    seconds = time.perf_counter() - began
    return sum(len(t.turns) for group in groups for t in group) / seconds


def kill_one(manager: ShardedManager, given: argparse.Namespace) -> str:
    """A batch during which one shard's process is killed."""
    import ray

    async def play() -> list[Any]:
        playing = asyncio.create_task(manager.batch_async(seeds(given.groups), given.groups, 8))
        await asyncio.sleep(given.turns * given.seconds / 2)
        ray.kill(manager.fleet.slots[0].shard.actor)  # type: ignore[union-attr]
        return await playing

    groups = manager.run(play())
    whole = sum(len(group.complete) == 8 for group in groups)
    distinct = len({group.task.seed for group in groups})
    return (
        f"With one of four shards killed in the middle: {whole} of {given.groups} groups whole, {distinct} different "
        f"tasks, {manager.fleet.begun_again} groups begun again.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--groups", type=int, default=256, help="of a batch in real time")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn in real time")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    on_ray = real(given)
    simulated = virtual(given)
    base = Setting(nodes=given.nodes)
    note = (
        f"\n\nVirtual time: {given.nodes} nodes. An episode has {base.turns} turns; an answer takes a log-normal time "
        f"with median {base.engine:g} s, a step of the environment one with median {base.environment:g} s, sigma "
        f"{base.sigma:g}. A batch has half as many episodes as are in play; training takes {base.train:g} s, new "
        f"weights {base.sync:g} s, staleness is at most {base.staleness}. Nodes fail at the published rate of "
        f"{PUBLISHED:.2e} an hour and are back after {base.back:g} s. The CPU milliseconds of a group are those of its "
        "episodes too, which a cluster spreads over its nodes.\n\n"
    )
    waits = (
        "\nReal time: a local Ray cluster; environments that wait a log-normal time, median "
        f"{1000 * given.seconds:g} ms a turn; {given.groups} groups of 8, {given.turns} turns each, all at once; "
        f"medians of {given.rounds} rounds.\n\n"
    )
    save("cluster", header() + waits + on_ray + note + simulated + "\n" + coordinator(20_000))


if __name__ == "__main__":
    main()
