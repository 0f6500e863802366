"""Time that a gateway adds to a call: bodies of 20 and 80 KB, and a session of 200 turns.

The engine answers at once, so a call's time is the gateway's own: it reads the body, finds the chat in the tree, makes
the prompt's tokens, reads the answer's calls, records them and writes the answer. Gateway and client are two
processes; the client's own work is outside the clock.

With ``--peer PYTHON`` the same bodies go through verifiers' interception server, which runs in that Python.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from common import ROOT, header, save, table

SAID = 'I look.\n<tool_call>{"name": "bash", "arguments": {"command": "ls -l"}}</tool_call>'
#: A session's own settings take about 17 KB, each turn 630 bytes: 20 KB at turn 5, 80 KB and 200 messages at turn 100.
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Run a command in the machine and return what it writes. " * 30,
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
    for name in ("bash", "read", "write")
]
SYSTEM = "You solve tasks with the tools that you have. Read what they return before you go on. " * 130
RESULT = "total 8\n" + "-rw-r--r-- 1 root root 120 Nov 26 02:40 README.md\n" * 6
TURNS, SESSIONS = 200, 3


class AtOnce:
    """An engine that says the same at once."""

    def __init__(self, ids: list[int]):
        self.ids, self.max_context, self.version = ids, 1 << 20, 0

    async def generate(self, prompt: Any, sampling: Any, rng: Any, *, session: int = -1) -> Any:
        from rollenv.agents.engines.base import Response

        return Response(self.ids, [-0.5] * len(self.ids), [0] * len(self.ids), "stop")

    def release(self, session: int) -> None:
        """Do nothing."""


def serve(pipe: Any, record: str | None) -> None:
    """Serve a gateway, and send the base URLs of its sessions."""
    from rollenv.agents.engine_agent import EngineAgent
    from rollenv.agents.gateway.gateway import Gateway
    from rollenv.agents.tiny.model import build_tokenizer

    texts = [path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))]
    tokenizer = build_tokenizer([*texts, SYSTEM, RESULT], 8000, chat=True)
    ids = [*tokenizer.encode(SAID), tokenizer.eos_token_id]

    async def run() -> None:
        async with Gateway(EngineAgent(AtOnce(ids), tokenizer), record=record) as gateway:
            pipe.send([gateway.open().base_url for _ in range(SESSIONS)])
            await asyncio.to_thread(pipe.recv)

    asyncio.run(run())


@contextmanager
def gateway(record: str | None = None) -> Iterator[list[str]]:
    """A gateway in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, record))
    process.start()
    yield here.recv()
    here.send(None)
    process.join()


@contextmanager
def peer(python: str) -> Iterator[list[str]]:
    """verifiers' interception server; the first URL is that of the endpoint behind it, which answers at once."""
    script = Path(__file__).with_name("gateway_peer.py")
    with subprocess.Popen([python, str(script), str(SESSIONS)], stdout=subprocess.PIPE, stdin=-1, text=True) as run:
        assert run.stdout
        yield json.loads(run.stdout.readline())
        run.kill()


def play(urls: list[str]) -> list[list[float]]:
    """Milliseconds of each turn, of all sessions."""
    times: list[list[float]] = [[] for _ in range(TURNS)]
    for url in urls:
        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {place.fragment or 'x'}"}
        chat: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"A task. {url}"}]
        for turn in range(TURNS):
            body = json.dumps({"model": "policy", "messages": chat, "tools": TOOLS}).encode()
            began = time.perf_counter()
            connection.request("POST", f"{place.path}/chat/completions", body, headers)
            answer = connection.getresponse().read()
            times[turn].append((time.perf_counter() - began) * 1000)
            said = json.loads(answer)["choices"][0]["message"]
            call = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": RESULT}
            chat += [said, call]
    return times


def row(name: str, times: list[list[float]]) -> list[object]:
    """Return a table row with the latencies of a gateway."""

    def middle(first: int, last: int) -> tuple[float, float]:
        some = [t for turn in times[first:last] for t in turn]
        return statistics.median(some), statistics.quantiles(some, n=20)[18]

    small, large, second, end = middle(1, 11), middle(90, 110), middle(1, 3), middle(195, 200)
    return [name, *small, *large, second[0], end[0], end[0] / second[0]]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        servers: list[tuple[str, Callable[[], Any]]] = [
            ("rollenv", gateway),
            ("rollenv, recorded to disk", lambda: gateway(f"{folder}/record")),
        ]
        for name, server in servers:
            with server() as urls:
                rows.append(row(name, play(urls)))
        if options.peer:
            with peer(options.peer) as (endpoint, *urls):
                rows.append(row("an endpoint alone", play([endpoint])))
                rows.append(row("verifiers 0.4.0 before that endpoint", play(urls)))
    head = ["gateway", "20 KB, p50 ms", "p95", "80 KB, p50 ms", "p95", "turn 2", "turn 200", "ratio"]
    save("gateway", f"{header()}\n{table(head, rows)}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
