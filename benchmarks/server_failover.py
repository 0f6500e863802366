"""Episodes on three servers of which one is killed and one stands still; and while each is replaced by a new one.

Both kinds of client play: the rollout manager with servers as workers, and environments with several servers in their
address, in threads. Every trajectory has to equal the one that this process plays alone. A restart in turn may replay
nothing: the servers count replays and the sessions that were opened.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from common import ROOT, header, save, table

import rollenv
from rollenv.agents.base import Action, EnvHandle, OracleAgent, Session
from rollenv.core.errors import Unsolvable
from rollenv.rollout.manager import RolloutManager
from rollenv.rollout.types import Task
from rollenv.rollout.workers.remote import RemoteWorkers

sys.path.insert(0, str(ROOT / "tests" / "serve"))
from serving import Served

ENV = "game:Sokoban-v0-easy"
SERVERS, AT_ONCE = 3, 24

#: Seconds that an agent thinks about a turn.
THINK = 0.1

#: The trajectory of each seed.
Played = dict[int, Any]
Play = Callable[[str, int], Played]


class Thinker(Session):
    """The noisy expert, with time to think."""

    def __init__(self, expert: Session | None = None):
        self.expert = expert

    def start(self, env: EnvHandle, seed: int) -> Session:
        return Thinker(OracleAgent(0.5).start(env, seed))

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        assert self.expert is not None
        await asyncio.sleep(THINK)
        return await self.expert.act(observation, info)


def rollouts(address: str, episodes: int) -> Played:
    """Episodes of the rollout manager; in this process if there is no address."""
    workers = RemoteWorkers(address, ping_every=0.2, lost_after=3.0) if address else None
    with RolloutManager(Thinker(), workers, max_concurrent=AT_ONCE) as manager:
        try:
            groups = manager.collect([Task(ENV, seed) for seed in range(episodes)], 1)
        finally:
            if workers is not None:
                manager.run(workers.aclose())
    return {group.task.seed: trajectory for group in groups for trajectory in group}


def choice(env: Any, turn: int) -> str:
    """The expert's action in every other turn, where it knows one."""
    if turn % 2 == 0:
        with contextlib.suppress(Unsolvable):
            return str(env.oracle_action())
    return str(env.sample_random_action())


def environments(address: str, episodes: int) -> Played:
    """Episodes of environments, from several threads."""

    def episode(seed: int) -> tuple[int, Any]:
        env = rollenv.make(f"{address}/{ENV}" if address else ENV)
        turns: list[Any] = [env.reset(seed)]
        while len(turns) == 1 or not (turns[-1][2] or turns[-1][3]):
            time.sleep(THINK)
            turns.append(env.step(choice(env, len(turns))))
        env.close()
        return seed, turns

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return dict(threads.map(episode, range(episodes)))


class Fleet:
    """Servers, some of which come to harm.

    Args:
        drain: seconds that sessions of a server get that is told to stop.
    """

    def __init__(self, drain: float = 120.0):
        self._args = ("--drain", str(drain))
        self.servers = [Served(*self._args, workers=1) for _ in range(SERVERS)]
        self.address = "rollenv+ws://" + ",".join(f"127.0.0.1:{served.port}" for served in self.servers)
        self.ended: list[dict[str, int]] = []
        """Counters of the servers that have ended."""

    def abuse(self, wait: float) -> None:
        """Kill one server, and have another one stand still."""
        time.sleep(wait)
        self.servers[0].signal(signal.SIGKILL)
        time.sleep(wait / 2)
        self.servers[1].signal(signal.SIGSTOP)

    def restart(self, wait: float) -> None:
        """Replace one server after the other."""
        for number, served in enumerate(self.servers):
            time.sleep(wait)
            self.ended.append(stopped(served))
            self.servers[number] = Served(*self._args, port=served.port, workers=1)

    def count(self, name: str) -> int:
        """The sum of a count of /health over all servers that there were."""
        now = [httpx.get(f"{served.http}/health", timeout=20).json()["counts"] for served in self.servers]
        return sum(counts[name] for counts in [*self.ended, *now])


def stopped(served: Served) -> dict[str, int]:
    """Stop a server; what it has counted when its last session has ended."""
    gem = f"{served.http}/apis/v1/envs/gem"
    mine = httpx.post(f"{gem}/make", json={"env_id": ENV}, timeout=60).json()  # it stays for as long as this one
    served.signal(signal.SIGTERM)
    while (told := httpx.get(f"{served.http}/health", timeout=20).json())["sessions"]["open"] > 1:
        time.sleep(0.05)
    assert told["status"] == "draining"
    httpx.post(f"{gem}/close", json=mine, timeout=20)
    assert served.process.wait(60) == 0, "the server did not end as it should"
    return dict(told["counts"]) | {"opened": told["counts"]["opened"] - 1}


@contextlib.contextmanager
def fleet() -> Iterator[Fleet]:
    """Servers that end with the block."""
    servers = Fleet()
    try:
        yield servers
    finally:
        for served in servers.servers:
            served.stop()


def measured(play: Play, harm: str, episodes: int, wait: float, alone: Played) -> tuple[object, ...]:
    """A row: play while the servers come to harm, and compare with what was played alone."""
    with fleet() as servers:
        harming = threading.Thread(target=getattr(servers, harm), args=(wait,)) if harm else None
        began = time.perf_counter()
        if harming is not None:
            harming.start()
        there = play(servers.address, episodes)
        took = time.perf_counter() - began
        meanwhile = harming is None or not harming.is_alive()
        if harming is not None:
            harming.join()
        counted = ("-", "-") if harm == "abuse" else (servers.count("opened"), servers.count("replays"))
    equal = sum(there.get(seed) == trajectory for seed, trajectory in alone.items())
    moved = sum(getattr(trajectory, "replays", 0) for trajectory in there.values())
    return len(there), equal, moved, *counted, "yes" if meanwhile else "no", f"{took:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--wait", type=float, default=0.5, help="seconds before each blow")
    given = parser.parse_args()
    kinds: dict[str, Play] = {"rollout manager": rollouts, "environments": environments}
    harms = {"": "none", "abuse": "one killed, one stopped", "restart": "restarted in turn"}
    rows: list[tuple[object, ...]] = []
    for name, play in kinds.items():
        alone = play("", given.episodes)
        for harm, told in harms.items():
            rows.append((name, told, *measured(play, harm, given.episodes, given.wait, alone)))
            print(*rows[-1], flush=True)
    head = ("client", "harm", "finished", "equal", "moved", "opened", "replays", "all harm while it played", "s")
    note = (
        f"{given.episodes} episodes of {ENV} on {SERVERS} servers with one worker each, {AT_ONCE} at a time; an agent "
        f"thinks {THINK:g} s about a turn. *equal*: as this process plays "
        "them alone, turn by turn. *moved*: episodes that the rollout manager replayed. *opened*, *replays*: as "
        "counted by the servers; a session that is opened twice was replayed by its client."
    )
    save("server_failover", f"{header()}\n{note}\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
