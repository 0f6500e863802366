"""Steps per second and latency of `rollenv serve` beside OpenEnv's own server, at several numbers of sessions.

Both serve the same echo environment to clients in this process: OpenEnv's to plain WebSockets that speak its protocol
(its own client costs more), rollenv's through the same protocol and the same sockets, and through its native one, where
one connection carries all sessions. `make peers` puts OpenEnv into `.bench/openenv`.
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
from common import ROOT, header, save, table
from websockets.asyncio.client import connect

from rollenv.rollout.types import Task
from rollenv.rollout.workers.remote import RemoteWorkers
from rollenv.vector import make_vec

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

#: Episodes a step of one session.
Step = Callable[[], Awaitable[object]]
#: Opens sessions.
Make = Callable[[str, int, contextlib.AsyncExitStack], Awaitable[list[Step]]]


@contextlib.contextmanager
def openenv() -> Iterator[str]:
    """Its server; yields the URL of the WebSocket."""
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
            yield f"ws://127.0.0.1:{port}/ws"
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


def stepped_together(address: str, sessions: int, seconds: float) -> list[float]:
    """Steps per second of a vector, which sends those of all its environments in one message; times are a round's."""
    vector = make_vec([f"{address}/test:Echo-v0"] * sessions)
    vector.reset(seed=0)
    times: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        before = time.perf_counter()
        vector.step(["hello"] * sessions)
        times.append(time.perf_counter() - before)
    rate = sessions * len(times) / (time.perf_counter() - began)
    vector.close()
    p50, p99 = np.quantile(times, (0.5, 0.99)) * 1000
    return [rate, float(p50), float(p99)]


async def measured(make: Make, where: str, sessions: int, seconds: float) -> list[float]:
    """Steps per second, and p50 and p99 of a step in milliseconds."""
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
        rate = len(times) / (time.perf_counter() - began)
        p50, p99 = np.quantile(times, (0.5, 0.99)) * 1000
        return [rate, float(p50), float(p99)]


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
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--sessions", type=int, nargs="*", default=[1, 16, 64, 256])
    given = parser.parse_args()
    rows = []
    served = Served("--sessions", "4096", workers=len(os.sched_getaffinity(0)))
    inline = Served("--sessions", "4096", "--inline", "test:*", workers=1)
    try:
        with openenv() as theirs:
            within = f"ws://127.0.0.1:{inline.port}/openenv/test:Echo-v0/ws"
            ours = f"ws://127.0.0.1:{served.port}/openenv/test:Echo-v0/ws"
            for sessions in given.sessions:
                kinds: dict[str, tuple[Make, str]] = {
                    "OpenEnv's server": (sockets, theirs),
                    "rollenv, OpenEnv's protocol": (sockets, ours),
                    "rollenv, native": (native, served.address),
                    "rollenv --inline, OpenEnv's protocol": (sockets, within),
                    "rollenv --inline, native": (native, inline.address),
                }
                found = {
                    name: asyncio.run(measured(make, where, sessions, given.seconds))
                    for name, (make, where) in kinds.items()
                }
                found["rollenv, native, a vector"] = stepped_together(served.address, sessions, given.seconds)
                base = found["OpenEnv's server"][0]
                for name, (rate, p50, p99) in found.items():
                    row = (sessions, name, f"{rate:.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{rate / base:.2f}")
                    rows.append(row)
                    print(*row, flush=True)
    finally:
        served.stop()
        inline.stop()
    fresh = Served("--sessions", "4096", workers=1)  # which has no memory from before to use again
    try:
        size = asyncio.run(idle(fresh, 1000))
    finally:
        fresh.stop()
    head = ("sessions", "server and protocol", "steps/s", "p50 ms", "p99 ms", "times OpenEnv's")
    note = (
        "An environment that echoes. The clients run in one process beside the servers; each session asks again as "
        "soon as it was answered; a vector asks for all when all were answered. OpenEnv runs environments in the "
        "server's own process, rollenv in worker processes."
    )
    end = f"\nAn idle session takes {size / 1000:.1f} kB of the server process (1,000 native sessions).\n"
    save("server", f"{header()}\n{note}\n\n{table(head, rows)}{end}")


if __name__ == "__main__":
    main()
