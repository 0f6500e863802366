"""Random and mutated requests to every protocol of `rollenv serve`, and whether it holds.

Three kinds: schemathesis over HTTP (`make .bench/schemathesis/installed`), mutations of valid requests over HTTP, and
frames of WebSockets. Beside each a canary session steps on. Held is: no status of 500 or more but 501, 502 to 504 and
507 of E2B and 503 with Retry-After; no end of the server; no traceback in its log.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from common import ROOT, header, save, table
from server_requests import E2B, ENV, Opened, mutated, mutated_bytes, mutated_value, openapi
from server_soak import Watch
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from rollenv.core.errors import UsageError
from rollenv.remote import protocol

sys.path.insert(0, str(ROOT / "tests" / "serve"))
from serving import Served

#: Clients at the same time, and seconds after which they get new sessions and sandboxes.
AT_ONCE, ANEW = 8, 15.0

#: Seconds that an answer may take: more than any program of a valid request.
ANSWER = 20.0

#: Log messages about malformed requests.
USUAL = ("Invalid HTTP request", "Unsupported upgrade request", "Expected boundary", "Found invalid", "Did not find")

#: Ends of paths whose answers last as long as what they tell of.
STREAMS = ("/Connect", "/Start", "/StreamInput", "/WatchDir")


class Canary(threading.Thread):
    """Steps in a session of its own, in a process of its own, and remembers the longest time that it waited."""

    CODE = """
import json, sys, time, rollenv
env = rollenv.make(sys.argv[1])
env.reset(1)
steps, longest = 0, 0.0
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    began = time.monotonic()
    assert env.step("canary")[0].endswith("canary")
    steps, longest = steps + 1, max(longest, time.monotonic() - began)
    time.sleep(0.05)
env.close()
print(json.dumps([steps, longest]))
"""

    def __init__(self, address: str, seconds: float):
        super().__init__()
        command = [sys.executable, "-c", self.CODE, f"{address}/{ENV}", str(seconds)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.told: tuple[int, float] = (0, float("inf"))
        self.start()

    def run(self) -> None:
        out, _ = self._process.communicate()
        if self._process.returncode == 0:
            self.told = tuple(json.loads(out))


# -- the three kinds ---------------------------------------------------------------------------------------------------


def allowed(path: str, status: int, headers: httpx.Headers) -> bool:
    """Return whether a status is documented for clients."""
    if status == 503:
        return "Retry-After" in headers or path.startswith(E2B)  # its clients know no such header
    of_e2b = path.startswith(E2B) or path.endswith("/files")  # a sandbox that has ended, is slow, or is full
    return status < 500 or status == 501 or (of_e2b and status in (502, 504, 507))


async def mutations(served: Served, seconds: float, found: Counter[str]) -> None:
    """Mutated valid requests over HTTP."""
    rng, end = random.Random(1), time.monotonic() + seconds
    made: list[Any] = []

    async def opened() -> None:
        with httpx.Client(base_url=served.http, timeout=60) as http:
            while time.monotonic() < end:
                new = await asyncio.to_thread(Opened, http)
                made[:] = [new.requests()]
                await asyncio.sleep(ANEW)
                await asyncio.to_thread(new.close, http)

    async def client(http: httpx.AsyncClient) -> None:
        while time.monotonic() < end:
            if not made:
                await asyncio.sleep(0.1)
                continue
            asked = mutated(rng, rng.choice(made[0]))
            headers = {"Content-Type": "application/json"} | asked.headers
            try:
                sent = {name: value.encode("latin-1", "replace") for name, value in headers.items()}
                async with asyncio.timeout(ANSWER):
                    answer = await http.request(asked.method, asked.path, content=asked.content(), headers=sent)
            except TimeoutError:
                if not asked.path.endswith(STREAMS):
                    found[
                        f"no answer to {asked.method} {asked.path:.60} {asked.content()[:300]!r} {asked.headers}"
                    ] += 1
                continue
            except (httpx.InvalidURL, httpx.LocalProtocolError):
                continue  # it cannot be sent
            except httpx.HTTPError as error:
                if isinstance(error, httpx.RemoteProtocolError) and asked.path.startswith(E2B):
                    continue  # its streams break off where another request ends their sandbox
                found[f"{type(error).__name__} at {asked.path:.60}"] += 1
                continue
            found["requests"] += 1
            if not allowed(answer.request.url.path, answer.status_code, answer.headers):
                found[f"{answer.status_code} {asked.method} {asked.path:.60}: {answer.text:.200}"] += 1

    async with httpx.AsyncClient(base_url=served.http, timeout=2 * ANSWER) as http:
        opening = asyncio.create_task(opened())
        await asyncio.gather(*(client(http) for _ in range(AT_ONCE)))
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)


def native_message(rng: random.Random) -> bytes:
    """A message of the native protocol with something wrong in it."""
    name = "n" * 20
    requests = [
        ["hello", protocol.VERSION], ["spec", ENV], ["open", name, ENV, {"kwargs": {}, "wrappers": {}, "views": True}],
        ["call", name, rng.randint(1, 20), "reset", [1, {}]], ["call", name, rng.randint(1, 20), "step", ["hello"]],
        ["call", name, rng.randint(1, 20), "set_state", [{"over": False}]], ["close", name], ["cancel", 3],
    ]  # fmt: skip
    several = [[rng.randint(-5, 2**40), *rng.choice(requests)] for _ in range(rng.choice([1, 1, 3, 50]))]
    value: Any = several if len(several) > 1 else several[0]
    try:
        data = protocol.pack(mutated_value(rng, value) if rng.random() < 0.6 else value)
    except (UsageError, RecursionError):
        return rng.randbytes(100)
    return mutated_bytes(rng, data) if rng.random() < 0.5 else data


def openenv_message(rng: random.Random) -> str | bytes:
    """A message of OpenEnv's protocol with something wrong in it."""
    data = rng.choice([{"seed": 1, "options": {}, "episode_id": "x"}, {"action": "hello", "metadata": {}}])
    value = mutated_value(rng, {"type": rng.choice(["reset", "step", "state", "close"]), "data": data})
    text = json.dumps(value)
    return mutated_bytes(rng, text.encode()) if rng.random() < 0.4 else text


async def messages(served: Served, path: str, make: Callable[[random.Random], str | bytes], rng: random.Random) -> int:
    """Send messages over a WebSocket until the server closes it, or for a while; how many."""
    sent = 0
    with contextlib.suppress(WebSocketException, OSError, TimeoutError):
        url = f"ws://127.0.0.1:{served.port}{path}"
        async with connect(url, compression=None, max_size=None, open_timeout=ANSWER, close_timeout=5) as socket:
            for _ in range(rng.randint(1, 60)):
                await socket.send(make(rng))
                sent += 1
                if rng.random() < 0.3:
                    await asyncio.wait_for(socket.recv(), 0.5)
            if rng.random() < 0.3:
                socket.transport.abort()
    return sent


async def frames(served: Served, path: str, rng: random.Random) -> int:
    """Send frames that are none, after a proper or improper request to connect."""
    key = base64.b64encode(rng.randbytes(16)).decode()
    head = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket"]
    head += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", "", ""]
    request = "\r\n".join(head).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    with contextlib.suppress(OSError, TimeoutError):
        writer.write(request if rng.random() < 0.7 else mutated_bytes(rng, request))
        for _ in range(rng.randint(1, 10)):
            if writer.transport.is_closing():
                break
            length = rng.choice(
                [b"\x85", b"\xfe\xff\xff", b"\xff" + b"\xff" * 8, b"\xff" + bytes(7) + b"\x05", b"\x05"]
            )
            frame = bytes([rng.choice([0x81, 0x82, 0x01, 0x80, 0x88, 0x89, 0x8A, 0xF1, 0x83, 0x8B])]) + length
            writer.write(frame + rng.randbytes(rng.choice([9, 9, 9, 200])))
        await asyncio.wait_for(reader.read(100), 1)
    writer.transport.abort()
    return 1


async def sockets(served: Served, seconds: float, found: Counter[str]) -> None:
    """Messages and frames of WebSockets."""
    rng, end = random.Random(2), time.monotonic() + seconds
    openenv = f"/openenv/{ENV}/ws"

    async def client() -> None:
        while time.monotonic() < end:
            way = rng.choice([
                lambda: messages(served, protocol.PATH, native_message, rng),
                lambda: messages(served, openenv, openenv_message, rng),
                lambda: frames(served, rng.choice([protocol.PATH, openenv, "/livez"]), rng),
            ])  # fmt: skip
            try:
                found["requests"] += await asyncio.wait_for(way(), ANSWER)
            except TimeoutError:
                found["no answer, no end"] += 1
            except OSError as error:
                found[f"cannot connect: {error}"] += 1

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))


async def schemathesis(served: Served, seconds: float, found: Counter[str]) -> None:
    """What schemathesis makes of an OpenAPI description of all routes. The log tells the statuses."""
    program = ROOT / ".bench" / "schemathesis" / "bin" / "schemathesis"
    if not program.exists():
        sys.exit("`make .bench/schemathesis/installed` puts schemathesis there")
    with httpx.Client(base_url=served.http, timeout=60) as http, tempfile.TemporaryDirectory() as folder:
        opened = Opened(http)
        (Path(folder) / "openapi.json").write_text(json.dumps(openapi(opened.requests())))
        live = [f"--header={name}:{value}" for name, value in (opened.ors | opened.e2b).items()]
        process = await asyncio.create_subprocess_exec(
            program, "run", "openapi.json", f"--url={served.http}", "--checks=not_a_server_error",
            "--continue-on-failure", "--max-failures=1000000", "--no-shrink", "--phases=examples,coverage,fuzzing",
            f"--max-time={round(seconds)}", "--workers=2", f"--request-timeout={ANSWER}",
            "--suppress-health-check=all", *live,
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            out, _ = await asyncio.wait_for(process.communicate(), seconds + 120)
        except TimeoutError:
            process.kill()
            out, _ = await process.communicate()
        (Path(tempfile.gettempdir()) / "schemathesis.log").write_bytes(out)


KINDS: dict[str, Callable[[Served, float, Counter[str]], Coroutine[Any, Any, None]]] = {
    "schemathesis": schemathesis,
    "mutations": mutations,
    "sockets": sockets,
}


# -- what is said of them ----------------------------------------------------------------------------------------------


def read(log: Path, kind: str, found: Counter[str]) -> tuple[int, int]:
    """Requests and tracebacks in a server's log. Statuses that schemathesis got and nobody is told of are found."""
    requests = tracebacks = 0
    for line in log.read_text(errors="replace").splitlines():
        told = {}
        with contextlib.suppress(ValueError):
            told = json.loads(line)
        if "traceback" in told:
            tracebacks += 1
            found[f"traceback: {told['traceback'][-300:]}"] += 1
        elif not told and not line.startswith((" ", *USUAL)):  # another library's
            tracebacks += line.startswith("Traceback")
            found[f"log: {line[:300]}"] += 1
        status = told.get("status", 0)
        requests += bool(status)
        headers = httpx.Headers({"Retry-After": "1"})  # of that the mutations look
        if kind == "schemathesis" and not allowed(told.get("path", ""), status, headers):
            found[f"{status} {told['method']} {told['path']:.60}"] += 1
    return requests, tracebacks


def fuzzed(kind: str, seconds: float) -> tuple[tuple[object, ...], Counter[str]]:
    """A row of the table, and what was found."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as file:
            limits = ("--idle=30", "--gone=5", "--silence=30", "--sandboxes=16", "--log=json", "--step-deadline=20")
            served = Served(*limits, stderr=file, workers=2)
            try:
                watch = Watch(served)
                asyncio.run(KINDS[kind](served, min(5.0, seconds), Counter()))  # what is made once is there from now on
                before = watch.look()
                canary = Canary(served.address, seconds)
                asyncio.run(KINDS[kind](served, seconds, found))
                canary.join()
                alive = served.process.poll() is None
                time.sleep(40 if seconds > 60 else 0)  # the limits of idle and silent clients
                after = watch.look() if alive else dict.fromkeys(before, "-")
            finally:
                served.stop()
        requests, tracebacks = read(log, kind, found)
    requests = max(requests, found.pop("requests", 0))
    steps, longest = canary.told
    row = (kind, requests, sum(found.values()), tracebacks, steps, f"{longest:.2f}")
    memory = (f"{before['server MB']} to {after['server MB']}", f"{before['tasks']} to {after['tasks']}")
    return (*row, *memory, "yes" if alive else "no"), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each kind")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--together", action="store_true", help="all kinds at the same time, each on its server")
    parser.add_argument("--name", default="server_fuzz", help="of the file of results")
    given = parser.parse_args()
    rows, lines = [], []
    with ThreadPoolExecutor(len(given.kinds) if given.together else 1) as threads:
        results = list(threads.map(fuzzed, given.kinds, [given.seconds] * len(given.kinds)))
    for kind, (row, found) in zip(given.kinds, results, strict=True):
        rows.append(row)
        lines += [f"- {kind}: {count} times {what!r}" for what, count in found.most_common(40)]
    head = ("kind", "requests", "found", "tracebacks", "canary's steps", "longest s", "server MB", "tasks", "alive")
    note = (
        f"{given.seconds:g} s of each kind, {AT_ONCE} clients. *found*: undeclared statuses and requests without an "
        "answer. *longest*: the canary's slowest step. Memory and tasks before, and after the limits of idle clients."
    )
    save(given.name, f"{header()}\n{note}\n\n{table(head, rows)}\n" + "\n".join(lines) + "\n" * bool(lines))


if __name__ == "__main__":
    main()
