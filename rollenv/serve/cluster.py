"""Servers on the nodes of a Ray cluster: Ray Serve starts and supervises them and serves a directory of them.

A session belongs to one server, and Ray Serve's proxy does not support sessions. So clients get the addresses of all
servers from the directory and connect to them directly.
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

from rollenv.core.needs import extra

with extra("cluster", "Serving on a Ray cluster"):
    import ray
    from ray import serve

#: Seconds between two health checks of a server; after three missed ones it is removed from the directory.
CHECK = 5.0

#: Maximum seconds for the start of a server, and for the answer to a check.
_START, _ANSWER = 120.0, 10.0

#: Number of ports to try on a node.
_PORTS = 100


class Options(BaseModel):
    """The arguments of ``serve run rollenv.serve.cluster:build NAME=VALUE ...``."""

    model_config = ConfigDict(extra="forbid")
    servers: int = 2
    cpus: float = 1.0
    """CPUs of each server, for Ray's placement."""
    port: int = 8800
    """First port to try on each node."""
    options: str = ""
    """Options of ``rollenv serve``. Files in them, such as tokens, must exist on every node."""


def build(options: Options | dict[str, Any]) -> Any:
    """Build the application for ``serve run`` and ``serve.run``.

    Args:
        options: options of the servers; ``serve run`` passes them as texts.

    Raises:
        ValidationError: an option is unknown or has the wrong type.
    """
    chosen = Options.model_validate(options)
    deploy: Any = serve.deployment  # its annotations do not cover classes
    times = {"health_check_period_s": CHECK, "health_check_timeout_s": 2 * _ANSWER, "graceful_shutdown_timeout_s": 60}
    server = deploy(Server, num_replicas=chosen.servers, ray_actor_options={"num_cpus": chosen.cpus}, **times)
    return deploy(Directory, num_replicas=1).bind(server.bind(chosen.port, shlex.split(chosen.options)))


class Server:
    """A ``rollenv serve`` on this replica's node. Ray Serve replaces the replica when the server has ended.

    Args:
        port: first port to try.

    Raises:
        RuntimeError: the server does not start; its output is in Ray's log of the replica.
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
        """Start the server, which ends with this process; return false if the port was taken."""
        command = [sys.executable, "-P", "-m", "rollenv", "serve", "--attached"]
        command += ["--host", self.host, "--port", str(self.port), *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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
        """Check that the server answers, and report it to the directory. Called by Ray Serve."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the server on {self.host}:{self.port} ended with {self.process.returncode}")
        async with httpx.AsyncClient(verify=False, timeout=_ANSWER) as client:  # certificates have names, not addresses
            (await client.get(f"{self.url}/livez")).raise_for_status()
        app = serve.get_replica_context().app_name
        with contextlib.suppress(Exception):  # if the directory has not started, the next check reports again
            serve.get_deployment_handle("Directory", app).seen.remote(f"{self.host}:{self.port}", self.url)

    async def __del__(self) -> None:
        """Stop the server within the time of ``--drain``. Called by Ray Serve before the replica ends."""
        self.process.terminate()
        await asyncio.to_thread(self.process.wait)


class Directory:
    """The addresses of the servers: ``GET /`` as text, ``GET /servers`` as JSON."""

    def __init__(self, servers: Any) -> None:
        self._seen: dict[str, tuple[float, str]] = {}

    def seen(self, address: str, url: str) -> None:
        """Record that a server works."""
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
