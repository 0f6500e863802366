"""Steps per second and latency of `rollenv serve` beside OpenEnv's own server, at several numbers of sessions.

Both serve the same echo environment to clients in this process: OpenEnv's to plain WebSockets that speak its protocol
(its own client costs more), rollenv's through the same protocol and the same sockets, and through its native one, where
one connection carries all sessions. `make peers` puts OpenEnv into `.bench/openenv`.

The servers are measured in turn, round by round, and each is compared with OpenEnv's in the same round: what else the
machine does falls on all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
from common import ROOT, header, save, table
from websockets.asyncio.client import connect

from rollenv.core.vector import make_vec
from rollenv.rollout.types import Task
from rollenv.rollout.workers.remote import RemoteWorkers

sys.path.insert(0, str(ROOT / "tests" / "serve"))
from serving import Served

#: An environment that answers with what it heard, in OpenEnv's terms.
OPENENV = """
import sys
import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app

class Say(Action):
    action: str

class Heard(Observation):
    text: str

class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def reset(self, seed=None, episode_id=None, **kwargs):
        self.turns = 0
        return Heard(text="start", done=False, reward=None)
    def step(self, action, timeout_s=None, **kwargs):
        self.turns += 1
        return Heard(text=f"{self.turns} {action.action}", done=False, reward=1.0)
    @property
    def state(self):
        return State(episode_id=None, step_count=self.turns)

app = create_app(Echo, Say, Heard, max_concurrent_envs=1024)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""

#: Titles of what :func:`compared` measures; the last column is the ratio to the first way.
HEAD = ("sessions", "server and protocol", "steps/s", "p50 ms", "p99 ms", "server CPU us", "client CPU us")

#: Episodes a step of one session.
Step = Callable[[], Awaitable[object]]
#: Opens sessions.
Make = Callable[[str, int, contextlib.AsyncExitStack], Awaitable[list[Step]]]


@contextlib.contextmanager
def openenv() -> Iterator[tuple[str, int]]:
    """Its server; yields the URL of the WebSocket, and its process id."""
    python = ROOT / ".bench" / "openenv" / "bin" / "python"
    if not python.exists():
        sys.exit("`make peers` puts OpenEnv into .bench/openenv")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([python, "-c", OPENENV, str(port)]) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            yield f"ws://127.0.0.1:{port}/ws", process.pid
        finally:
            process.terminate()


async def sockets(url: str, sessions: int, stack: contextlib.AsyncExitStack) -> list[Step]:
    """A connection for each session, in OpenEnv's protocol."""

    async def opened() -> Step:
        connection = await stack.enter_async_context(connect(url, compression=None, max_size=None))

        async def ask(kind: str, **data: str) -> object:
            await connection.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(await connection.recv())
            assert answer["type"] == "observation", answer
            return answer

        await ask("reset")
        return lambda: ask("step", action="hello")

    return [await opened() for _ in range(sessions)]


async def native(address: str, sessions: int, stack: contextlib.AsyncExitStack) -> list[Step]:
    """One connection for all sessions, in rollenv's protocol."""
    workers = RemoteWorkers(address, envs_per_server=4096)
    stack.push_async_callback(workers.aclose)
    envs = [await workers.open(Task("test:Echo-v0", seed)) for seed in range(sessions)]
    await asyncio.gather(*(env.reset() for env in envs))
    return [lambda env=env: env.step("hello") for env in envs]  # type: ignore[misc]


async def together(address: str, sessions: int, stack: contextlib.AsyncExitStack) -> list[Step]:
    """A vector, which sends the steps of all its environments in one message; each step is of all of them."""
    vector = make_vec([f"{address}/test:Echo-v0"] * sessions)
    stack.callback(vector.close)
    vector.reset(seed=0)

    async def step() -> None:
        vector.step(["hello"] * sessions)

    return [step]


async def measured(make: Make, where: str, sessions: int, seconds: float) -> list[float]:
    """Steps, seconds, and p50 and p99 of a step in milliseconds."""
    async with contextlib.AsyncExitStack() as stack:
        steps = await make(where, sessions, stack)
        times: list[float] = []
        end = time.perf_counter() + seconds

        async def play(step: Step) -> None:
            while (began := time.perf_counter()) < end:
                await step()
                times.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*map(play, steps))
        p50, p99 = np.quantile(times, (0.5, 0.99)) * 1000
        return [len(times) * sessions / len(steps), time.perf_counter() - began, float(p50), float(p99)]


def processor(pid: int) -> float:
    """Seconds of processor time of a process and its children."""
    found = psutil.Process(pid)
    return sum(sum(each.cpu_times()[:2]) for each in (found, *found.children(recursive=True)))


Ways = dict[str, tuple[Make, str, int]]


def compared(ways: Ways, sessions: int, seconds: float, rounds: int) -> list[tuple[object, ...]]:
    """A row for each way: how to open sessions, where, and the id of the server's process. The first is the base."""
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (make, where, pid) in ways.items():
            server, client = processor(pid), time.process_time()
            steps, took, p50, p99 = asyncio.run(measured(make, where, sessions, seconds))
            server, client = processor(pid) - server, time.process_time() - client
            found[name].append([steps / took, p50, p99, 1e6 * server / steps, 1e6 * client / steps])
    base = np.array(found[next(iter(ways))])[:, 0]
    rows = []
    for name, each in found.items():
        rate, p50, p99, server, client = np.median(each, axis=0)
        times = np.median(np.array(each)[:, 0] / base)
        rows.append(
            (
                sessions,
                name,
                f"{rate:.0f}",
                f"{p50:.2f}",
                f"{p99:.2f}",
                f"{server:.0f}",
                f"{client:.0f}",
                f"{times:.2f}",
            )
        )
        print(*rows[-1], flush=True)
    return rows


def memory(pid: int) -> int:
    """Bytes of a process that no other shares."""
    found = re.search(r"^Private_Dirty: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


async def idle(served: Served, sessions: int) -> float:
    """Bytes that a session takes in the server process."""
    async with contextlib.AsyncExitStack() as stack:
        await native(served.address, 100, stack)
        before = memory(served.process.pid)
        await native(served.address, sessions, stack)
        return (memory(served.process.pid) - before) / sessions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sessions", type=int, nargs="*", default=[1, 16, 64, 256])
    given = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    served = Served("--sessions", "4096", workers=len(os.sched_getaffinity(0)))
    inline = Served("--sessions", "4096", "--inline", "test:*", workers=1)
    try:
        with openenv() as (theirs, their_pid):
            within = f"ws://127.0.0.1:{inline.port}/openenv/test:Echo-v0/ws"
            ours = f"ws://127.0.0.1:{served.port}/openenv/test:Echo-v0/ws"
            ways: Ways = {
                "OpenEnv's server": (sockets, theirs, their_pid),
                "rollenv, OpenEnv's protocol": (sockets, ours, served.process.pid),
                "rollenv, native": (native, served.address, served.process.pid),
                "rollenv --inline, OpenEnv's protocol": (sockets, within, inline.process.pid),
                "rollenv --inline, native": (native, inline.address, inline.process.pid),
                "rollenv, native, a vector": (together, served.address, served.process.pid),
            }
            for sessions in given.sessions:
                rows += compared(ways, sessions, given.seconds, given.rounds)
    finally:
        served.stop()
        inline.stop()
    fresh = Served("--sessions", "4096", workers=1)  # which has no memory from before to use again
    try:
        size = asyncio.run(idle(fresh, 1000))
    finally:
        fresh.stop()
    note = (
        "An environment that echoes. The clients run in one process beside the servers; each session asks again as "
        "soon as it was answered; a vector asks for all when all were answered. OpenEnv runs environments in the "
        "server's own process, rollenv in worker processes. The servers are measured in turn, "
        f"{given.rounds} rounds of {given.seconds:g} s; medians of the rounds, also of the ratios; processor time is a "
        "step's, of the server with its workers."
    )
    end = f"\nAn idle session takes {size / 1000:.1f} kB of the server process (1,000 native sessions).\n"
    rows_of = table((*HEAD, "times OpenEnv's"), rows)
    save("server", f"{header()}\n{note}\n\n{rows_of}{end}")


if __name__ == "__main__":
    main()
