"""Sessions of every protocol, half of which are cut at random moments; and what is left of them in the server.

Other processes open the sessions. Of the cut ones some connections are closed or reset, the others are held: nothing is
read from them any more, and one of the processes is stopped with all that it holds. The limits of the server are set
to a few seconds. A round ends when all is as it was at the start, while the held connections are still held.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from common import ROOT, header, save, table
from server_clients import PLAYS, Act, Wire

sys.path.insert(0, str(ROOT / "tests" / "serve"))
from serving import Served

ENVS = ("test:Echo-v0", "test:Moody-v0", "game:Sokoban-v0-easy")
ENDS = ("closed", "reset", "held")

#: One session in so many asks for answers of 15 MB, and is held.
GREEDY = 50

#: Sessions of one process at the same time, and processes.
AT_ONCE, PROCESSES = 24, 3

#: Seconds after which a session is cut at the latest, and in which it plays all of its turns otherwise.
SOON = 1.5

#: Limits of the server in seconds, and after how many a round is given up.
IDLE, PATIENCE = 10.0, 120.0


def player(rng: random.Random, env_id: str, turns: int, *, greedy: bool = False) -> Act:
    """Episodes some turns; now and then it asks for much to read, if it is greedy for more than the kernel buffers."""
    left, choices = turns, ["\\boxed{left}"] if env_id.startswith("game:") else ["hello", "huge 300000"]
    if greedy:
        choices = ["huge 15000000"]

    def act(seen: str) -> str | None:
        nonlocal left
        left -= 1
        return None if left < 0 else rng.choice(choices)

    return act


class Clients:
    """The clients of one process.

    Args:
        port: port of the server.
        seed: seed of the random choices.
    """

    def __init__(self, port: int, seed: int):
        self.port, self.rng, self.room = port, random.Random(seed), asyncio.Semaphore(AT_ONCE)
        self.ends: Counter[str] = Counter()
        self.held: list[object] = []
        """Connections without a reader, and the tasks that wait for them."""

    async def all(self, sessions: int) -> None:
        """Open sessions, and end each in a random way."""
        await asyncio.gather(*(self._one(number) for number in range(sessions)))

    async def _one(self, number: int) -> None:
        rng, cut = self.rng, number % 2 == 1
        async with self.room:
            greedy = number % GREEDY == 1
            wire, env_id = Wire(self.port), "test:Moody-v0" if greedy else rng.choice(ENVS)
            act = player(rng, env_id, rng.randint(20, 60) if cut else rng.randint(1, 4), greedy=greedy)
            names = list(PLAYS)
            play = asyncio.create_task(PLAYS[names[number // 2 % len(names)]](wire, env_id, act))
            if not cut:
                await play
                self.ends["finished"] += 1
                return
            await asyncio.wait({play}, timeout=rng.uniform(0, SOON))
            end = "held" if greedy else rng.choice(ENDS)
            self.ends[end] += 1
            if end == "held":
                wire.hold()
                play.add_done_callback(lambda done: done.cancelled() or done.exception())
                self.held.append((wire, play))
                return
            wire.cut(end == "reset")
            play.cancel()
            await asyncio.gather(play, return_exceptions=True)


async def client(port: int, seed: int, sessions: int) -> None:
    """Be one of the processes: say how sessions ended, and hold the held ones until it is killed."""
    clients = Clients(port, seed)
    await clients.all(sessions)
    print(json.dumps(clients.ends), flush=True)
    await asyncio.Event().wait()


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [more for child in found for more in children(child)]


def resident(pid: int) -> float:
    """MB of a process in memory, apart from what it shares with others."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty", "Private_Clean"))) / 1024
    return 0.0


class Watch:
    """Monitor of a server's resources.

    Args:
        served: the server.
    """

    def __init__(self, served: Served):
        self.served, self.pid = served, served.process.pid

    def look(self) -> dict[str, Any]:
        """Return the current resources."""
        told = httpx.get(f"{self.served.http}/health", timeout=60).json()
        return {
            "sessions": told["sessions"]["open"],
            "environments": sum(worker["envs"] for worker in told["workers"]),
            "tasks": told["tasks"],
            "files": len(os.listdir(f"/proc/{self.pid}/fd")),
            "processes": len(children(self.pid)),
            "server MB": round(resident(self.pid), 1),
            "workers MB": round(sum(map(resident, children(self.pid))), 1),
        }

    def settled(self, start: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """Wait for the resources to return to the start; return them and the seconds, also after a timeout."""
        began = time.monotonic()
        same = ("sessions", "environments", "tasks", "files", "processes")
        while True:
            now, took = self.look(), time.monotonic() - began
            if all(now[name] <= start[name] for name in same) or took > PATIENCE:
                return now, took
            time.sleep(0.5)


def one_round(served: Served, sessions: int, seed: int) -> Counter[str]:
    """Let the processes loose on a server; how sessions ended. They stay, and one of them is stopped midway."""
    command = [sys.executable, __file__, "--client", str(served.port), "--sessions", str(sessions // PROCESSES)]
    running = [
        subprocess.Popen([*command, "--seed", str(PROCESSES * seed + number)], stdout=subprocess.PIPE, text=True)
        for number in range(PROCESSES)
    ]
    CLIENTS.extend(running)
    stop = threading.Thread(target=stop_midway, args=(served, running[0], sessions // 2))
    stop.start()
    ends: Counter[str] = Counter()
    for process in running[1:]:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "a process of clients failed"
        ends.update(json.loads(line))
    stop.join()
    return ends


def stop_midway(served: Served, process: subprocess.Popen[str], sessions: int) -> None:
    """Stop a process of clients when so many sessions were opened."""

    def opened() -> int:
        return int(httpx.get(f"{served.http}/health", timeout=60).json()["counts"]["opened"])

    most = opened() + sessions
    while opened() < most and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGSTOP)


#: Processes of clients that are still there.
CLIENTS: list[subprocess.Popen[str]] = []


def kill_clients() -> None:
    """End all processes of clients."""
    while CLIENTS:
        process = CLIENTS.pop()
        process.kill()
        process.wait()


def report(rounds: int, sessions: int, served: Served) -> str:
    """Play all rounds; the tables."""
    watch = Watch(served)
    one_round(served, 60, 0)  # what is made when it is first needed is there from now on
    kill_clients()
    time.sleep(2 * IDLE)
    start = watch.look()
    rows, ends = [("start", *start.values(), "")], Counter[str]()
    for number in range(1, rounds + 1):
        ends += one_round(served, sessions, number)
        now, took = watch.settled(start)
        rows.append((f"round {number}", *now.values(), f"{took:.0f}"))
        print(*rows[-1], flush=True)
        kill_clients()
    told = ", ".join(f"{count} {name}" for name, count in ends.items())
    stopped = f"the others were of processes that were stopped midway: {rounds * (sessions // PROCESSES)} at most"
    return f"{table(('', *start, 's until then'), rows)}\nHow sessions ended: {told}; {stopped}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=300, help="in each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--client", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        asyncio.run(client(given.client, given.seed, given.sessions))
        return
    limits = [f"--{name}={seconds:g}" for name, seconds in (("idle", IDLE), ("gone", IDLE), ("silence", IDLE))]
    served = Served("--sessions", "16384", *limits, workers=2)
    try:
        tables = report(given.rounds, given.sessions, served)
    finally:
        kill_clients()
        served.stop()
    note = (
        f"{given.sessions} sessions a round over {', '.join(PLAYS)}, each process {AT_ONCE} at a time. Limits of idle, "
        f"gone and silent clients: {IDLE:g} s. Tasks are those of the event loop, files those of the server process."
    )
    save("server_soak", f"{header()}\n{note}\n\n{tables}")


if __name__ == "__main__":
    main()
