"""Servers on the nodes of a Ray cluster: Ray Serve starts them, watches over them and tells where they are.

A session lives in one server, and Ray Serve's own proxy knows no sessions. So clients do not go through it: they ask
the directory, which it serves, for the addresses of all servers, and talk to those.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from rollenv.needs import extra

with extra("cluster", "Serving on a Ray cluster"):
    import ray
    from ray import serve

#: Seconds between two checks of a server; one that was not seen for three of them is left out.
CHECK = 5.0

#: Seconds that a server gets to start, and to answer a check.
_START, _ANSWER = 120.0, 10.0

#: Ports of a node that are tried, from the first one on.
_PORTS = 100


class Options(BaseModel):
    """The arguments of ``serve run rollenv.serve.cluster:build NAME=VALUE ...``."""

    model_config = ConfigDict(extra="forbid")
    servers: int = 2
    cpus: float = 1.0
    """Of each, for Ray's placement."""
    port: int = 8800
    """The first that is tried on each node."""
    options: str = ""
    """Of ``rollenv serve``. Files that they name, such as tokens, have to be on every node."""


def build(options: Options | dict[str, Any]) -> Any:
    """The application for ``serve run`` and ``serve.run``.

    Args:
        options: of the servers; ``serve run`` passes texts.

    Raises:
        ValidationError: there is no such option, or it is not of its type.
    """
    chosen = Options.model_validate(options)
    deploy: Any = serve.deployment  # its types do not tell what it makes of a class
    times = {"health_check_period_s": CHECK, "health_check_timeout_s": 2 * _ANSWER, "graceful_shutdown_timeout_s": 60}
    server = deploy(Server, num_replicas=chosen.servers, ray_actor_options={"num_cpus": chosen.cpus}, **times)
    return deploy(Directory, num_replicas=1).bind(server.bind(chosen.port, shlex.split(chosen.options)))


class Server:
    """A ``rollenv serve`` on this replica's node. Ray Serve replaces the replica when the server is gone.

    Args:
        port: the first that is tried.

    Raises:
        RuntimeError: the server does not start; its words are in Ray's log of the replica.
    """

    def __init__(self, port: int, options: list[str]) -> None:
        self.host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        scheme = "https" if "--certificate" in options else "http"
        for self.port in range(port, port + _PORTS):
            if _free(self.host, self.port) and self._started(options):
                self.url = f"{scheme}://{self.host}:{self.port}"
                return
        raise RuntimeError(f"no server started on {self.host}, ports {port} to {port + _PORTS - 1}")

    def _started(self, options: list[str]) -> bool:
        """Start it; it ends with this process, which holds its standard input. False where the port was taken."""
        command = [sys.executable, "-m", "rollenv.cli.attached", "--host", self.host, "--port", str(self.port)]
        self.process = subprocess.Popen([*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        late = threading.Timer(_START, self.process.kill)
        late.start()
        line = self.process.stdout.readline()
        late.cancel()
        if "serving on" in line:
            return True
        self.process.wait()
        if not _free(self.host, self.port):
            return False
        raise RuntimeError(f"`rollenv serve {shlex.join(options)}` does not start; Ray's log of this replica says why")

    async def check_health(self) -> None:
        """Called by Ray Serve: see that the server answers, and tell the directory."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the server on {self.host}:{self.port} ended with {self.process.returncode}")
        async with httpx.AsyncClient(verify=False, timeout=_ANSWER) as client:  # its own; the name is an address
            (await client.get(f"{self.url}/livez")).raise_for_status()
        app = serve.get_replica_context().app_name
        with contextlib.suppress(Exception):  # a directory that is not there yet hears of it next time
            serve.get_deployment_handle("Directory", app).seen.remote(f"{self.host}:{self.port}", self.url)

    async def __del__(self) -> None:
        """Called by Ray Serve before the replica ends: sessions get the time of ``--drain``."""
        self.process.terminate()
        await asyncio.to_thread(self.process.wait)


class Directory:
    """Tells clients where the servers are: ``GET /`` as text, ``GET /servers`` as JSON."""

    def __init__(self, servers: Any) -> None:
        self._seen: dict[str, tuple[float, str]] = {}

    def seen(self, address: str, url: str) -> None:
        """A server works."""
        self._seen[address] = (time.monotonic(), url)

    async def __call__(self, request: Request) -> Response:
        fresh = time.monotonic() - 3 * CHECK
        self._seen = {address: (at, url) for address, (at, url) in sorted(self._seen.items()) if at > fresh}
        if not self._seen:
            return PlainTextResponse("no server has started yet\n", 503, {"Retry-After": "5"})
        urls = [url for _, url in self._seen.values()]
        address = f"rollenv+{'wss' if urls[0].startswith('https') else 'ws'}://{','.join(self._seen)}"
        if request.url.path.endswith("/servers"):
            return JSONResponse({"address": address, "urls": urls})
        return PlainTextResponse(address + "\n")


def _free(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_server((host, port)):
        return True
    return False
