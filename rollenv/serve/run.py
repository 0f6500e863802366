"""Runs a server until a signal stops it, with environments in worker processes or in this process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fnmatch
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.http_server import Punctual, Uvicorn
from rollenv.core.needs import extra
from rollenv.core.registry import spec
from rollenv.remote import protocol
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import Avoid, EnvFailure, HostedEnv, Views, avoid_none
from rollenv.rollout.workers.pool import Answered, PooledEnv, PoolWorker
from rollenv.rollout.workers.processes import ProcessWorkers
from rollenv.serve.app import make_app
from rollenv.serve.server import EnvServer, Settings
from rollenv.serve.websocket import WebSocket

with extra("serve", "rollenv serve"):
    import uvicorn

logger = logging.getLogger(__name__)

#: Seconds of a step, in processor time and in wall-clock time, after which an id moves to workers: a step in this
#: process blocks the server.
SLOW, LATE = 0.1, 1.0


class ServedWorkers(ProcessWorkers):
    """Worker processes, and the server's own process for some ids.

    A call of an environment in this process cannot be interrupted and blocks all others.

    Args:
        inline: patterns of ids, such as ``game:*``.
    """

    def __init__(self, processes: int | None, *, envs_per_process: int, inline: Sequence[str] = ()):
        super().__init__(processes, envs_per_process=envs_per_process)
        self.inline = tuple(inline)
        self.slow: set[str] = set()
        self.inline_envs = 0

    async def open(
        self, task: Task, *, views: Views = False, avoid: Avoid = avoid_none, alone: bool = False
    ) -> PooledEnv:
        """See :meth:`.pool.WorkerPool.open`."""
        inline = any(fnmatch.fnmatchcase(task.env_id, pattern) for pattern in self.inline)
        if not inline or alone or task.env_id in self.slow:
            return await super().open(task, views=views, avoid=avoid, alone=alone)
        self.attach()
        return cast(PooledEnv, ServerEnv(self, task, views))

    def on_death(self, worker: PoolWorker) -> None:
        """Say that a worker is lost, and replace it."""
        if self._loop is not None:  # None: the pool was closed
            logger.warning("worker %s is lost: %s", worker.name, worker.death)
        super().on_death(worker)

    def report(self) -> list[dict[str, Any]]:
        """The state of every worker, and of this process if it may have environments."""
        here = [{"worker": "server", "state": "up", "envs": self.inline_envs}] if self.inline else []
        return [*here, *super().report()]


class ServerEnv:
    """An environment in this process, with the interface of :class:`.pool.PooledEnv`."""

    worker = "server"

    def __init__(self, pool: ServedWorkers, task: Task, views: Views):
        self._pool, self._how = pool, (spec(task.env_id), task, views)
        self._env: HostedEnv | None = None
        self._seconds, self._is_open = 0.0, True
        pool.inline_envs += 1

    def send(self, operation: str, args: Sequence[Any], done: Answered) -> None:
        """Carry out an operation and pass its answer or error on."""
        try:
            answer = self._carry_out(operation, args)
        except RollenvError as error:
            answer = error
        done(answer)

    def computed(self) -> float:
        """Return the processor time since the last call, in seconds."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    async def diagnose_hang(self, failure: EnvFailure) -> EnvFailure:
        """Return the failure: the call has ended."""
        return failure

    def close(self, spent: Callable[[float], None] = lambda seconds: None) -> None:
        if self._is_open:
            self._is_open = False
            self._pool.inline_envs -= 1
            with contextlib.suppress(RollenvError):
                self._carry_out("close", ())
            spent(self.computed())

    abandon = close

    def _carry_out(self, operation: str, args: Sequence[Any]) -> Any:
        began, clock = time.thread_time(), time.monotonic()
        try:
            if operation == "about":
                self._env = self._env or HostedEnv(*self._how)
            return getattr(self._env, operation)(*args) if self._env is not None else None
        finally:
            seconds = time.thread_time() - began
            self._seconds += seconds
            if operation == "step" and (seconds > SLOW or time.monotonic() - clock > LATE):
                env_id = self._how[1].env_id
                self._pool.slow.add(env_id)
                logger.warning(
                    "a step of %s took %.2f s in the server; from now on its environments run in workers",
                    env_id,
                    seconds,
                )


#: Minimum bytes of a block that is returned to the system at once, and the number of that option in malloc.h.
_LARGE, _M_MMAP_THRESHOLD = 1 << 20, -3

#: Seconds after which a client that reads nothing is disconnected, because its answers stay in memory.
UNREAD = 60.0


def listen(host: str, port: int, unread: float = UNREAD) -> socket.socket:
    """Open a listening socket.

    Args:
        port: 0 for any free port.
        unread: seconds after which a connection ends whose client reads nothing.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.create_server((host, port), family=family, backlog=2048)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * unread))  # connections inherit both
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    except (OSError, UnicodeError) as error:
        raise UsageError(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', '') or error}") from error


def return_memory() -> None:
    """Let the C library return large blocks to the system as soon as they are freed, here and in child processes.

    Otherwise a few large answers leave hundreds of megabytes of fragmented memory in each process.
    """
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(_LARGE))
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in uvloop's faster event loop if it is installed, else in asyncio's."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)


async def serve(
    settings: Settings, workers: ProcessWorkers, sock: socket.socket, ready: Callable[[], None] = lambda: None
) -> None:
    """Serve until SIGTERM or SIGINT. The first signal lets sessions end, the second ends them.

    Args:
        ready: called when the server accepts clients.
    """
    server = EnvServer(settings, workers)
    config = uvicorn.Config(
        make_app(server),
        http=Punctual,
        ws=WebSocket,
        ws_max_size=protocol.LARGEST_REQUEST,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=30,
        lifespan="on",
        log_config=None,
        access_log=False,
        ssl_certfile=str(settings.tls[0]) if settings.tls else None,
        ssl_keyfile=str(settings.tls[1]) if settings.tls else None,
    )
    try:
        config.load()
    except OSError as error:  # of the only files that it reads
        raise UsageError(f"the TLS certificate {config.ssl_certfile} and its key are not usable: {error}") from error
    web = Uvicorn(config)
    loop = asyncio.get_running_loop()
    draining: list[asyncio.Task[None]] = []

    async def stop() -> None:
        logger.warning("draining: %d open sessions may end within %g s", len(server.sessions.by_name), settings.drain)
        await server.sessions.drain(settings.drain)
        web.should_exit = True

    def on_signal() -> None:
        draining.append(loop.create_task(server.sessions.drain(0) if draining else stop()))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    gc.freeze()  # collections without the modules take a tenth of the time
    gc.set_threshold(20_000, 20, 20)
    loop.call_soon(ready)
    await web.serve(sockets=[sock])
    logger.warning("stopped")
