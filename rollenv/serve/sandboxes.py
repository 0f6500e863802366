"""Sandboxes of clients by name, with leases, and a pool for single programs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rollenv.core.errors import UsageError
from rollenv.core.tools.sandboxed import chosen
from rollenv.remote.protocol import ServerFull, SessionGone, session_name
from rollenv.sandbox import AsyncSandbox, Pool, Sandbox
from rollenv.sandbox.types import Limits, RunResult
from rollenv.serve.logs import audit
from rollenv.serve.quotas import FairQueue, RateLimiter, stopping

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Seconds between two checks for expired sandboxes.
_REAP_EVERY = 1.0

#: Maximum concurrent single programs.
_CORES = os.cpu_count() or 1

#: Maximum concurrent calls of one sandbox, each with a thread, and threads of the default executor for other work.
_CALLS, _OTHERS = 8, 32

#: Threads that end sandboxes, separate from those of calls so that one is always free.
_ENDING = 8

#: Maximum seconds to end all sandboxes when the server stops.
_STOP_SECONDS = 20.0


@dataclass(frozen=True)
class SandboxLimits:
    """The limits of clients' sandboxes."""

    sandboxes: int = 64
    """Maximum open sandboxes; 0 disables them."""
    idle: float = 1800.0
    """Seconds without a call after which a sandbox ends."""
    total: float = 86_400.0
    """Seconds after which a sandbox ends in any case; clients may request less."""
    limits: Limits = field(default_factory=Limits)
    """Limits of each sandbox."""
    longest: float = 600.0
    """Maximum seconds that a client may request for one call."""
    waiting: int = 1000
    """Maximum programs that wait for the pool."""


class SandboxSession:
    """A client's sandbox."""

    def __init__(
        self,
        name: str,
        owner: str,
        sandbox: Sandbox,
        metadata: Mapping[str, str],
        limiter: RateLimiter,
        brief: bool = False,
    ):
        self.name, self.owner, self.metadata, self._limiter = name, owner, dict(metadata), limiter
        self.brief = brief
        """True if the sandbox serves a single call."""
        self.sandbox = AsyncSandbox(sandbox)
        self.started = time.time()
        """Seconds since 1970."""
        self.opened = self.used = time.monotonic()
        self.busy = 0
        self._room = asyncio.Semaphore(_CALLS)

    @property
    def alive(self) -> bool:
        return self.sandbox.sync.alive

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[AsyncSandbox]:
        """Hold the sandbox for a call; meanwhile it is not idle."""
        if not self.alive:
            raise SessionGone("the sandbox has ended")
        with self.hold():
            async with self._room:
                began = time.monotonic()
                try:
                    yield self.sandbox
                finally:
                    self._limiter.spend(self.owner, time.monotonic() - began)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the sandbox from being idle."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.used = time.monotonic()


class PerSandbox(Generic[T]):
    """A value for each sandbox, created on first access and dropped with the sandbox."""

    def __init__(self, make: Callable[[], T]):
        self._make = make
        self._values: weakref.WeakKeyDictionary[SandboxSession, T] = weakref.WeakKeyDictionary()

    def __call__(self, session: SandboxSession) -> T:
        value = self._values.get(session)
        return self._values.setdefault(session, self._make()) if value is None else value


@dataclass
class SandboxCounters:
    """Counts since the start, for ``/metrics``."""

    opened: int = 0
    refused: int = 0
    expired: int = 0
    runs: int = 0


class SandboxManager:
    """All sandboxes of a server."""

    def __init__(self, limits: SandboxLimits, limiter: RateLimiter):
        self.limits, self.limiter, self.counters = limits, limiter, SandboxCounters()
        self.by_name: dict[str, SandboxSession] = {}
        self.draining = False
        self.holds: Callable[[str], bool] = lambda owner: True
        """Returns True while a token of an owner is valid; what it opened ends with it."""
        self.queue = FairQueue(_CORES, patience=None)
        self._opening: list[str] = []
        self._pool: Pool | None = None
        self._pool_lock = asyncio.Lock()
        self._reaper: asyncio.Task[None] | None = None
        self._ending = ThreadPoolExecutor(_ENDING, thread_name_prefix="sandbox-end")
        self._programs = ThreadPoolExecutor(2 * _CORES + 8, thread_name_prefix="sandbox-program")
        self._alone: set[asyncio.Task[RunResult]] = set()

    async def open(
        self,
        owner: str,
        *,
        lifetime: float | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        snapshot: bytes | None = None,
        brief: bool = False,
    ) -> SandboxSession:
        """Start a sandbox.

        Args:
            lifetime: seconds until the sandbox ends, capped by the limits.
            snapshot: files of another sandbox.
            brief: whether it serves a single call.

        Raises:
            ServerFull: there is no room.
            SandboxError: this machine cannot isolate sandboxes.
        """
        self._admit(owner)
        seconds = self.lifetime(lifetime)
        settings: dict[str, Any] = {"limits": limits or self.limits.limits, "env": env, "timeout": seconds}
        if snapshot is not None:
            settings["snapshot"] = snapshot
        self._opening.append(owner)
        create = functools.partial(Sandbox.create, **chosen(), **settings)
        starting = asyncio.get_running_loop().run_in_executor(self._programs, create)
        try:
            sandbox = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._discard)
            raise
        finally:
            self._opening.remove(owner)
        session = SandboxSession(session_name(), owner, sandbox, metadata or {}, self.limiter, brief)
        if self.draining:
            sandbox.kill()
            raise stopping()
        self.by_name[session.name] = session
        self.counters.opened += 1
        audit("open", owner, sandbox=session.name[:6])
        return session

    def lifetime(self, seconds: float | None) -> float:
        """Return the lifetime of a sandbox for a requested one; None requests the maximum."""
        return _seconds(seconds, self.limits.total, self.limits.total)

    def seconds(self, seconds: float | None) -> float:
        """Return the timeout of a call for a requested one; None requests the default."""
        return _seconds(seconds, self.limits.limits.seconds, self.limits.longest)

    def get(self, name: str, owner: str) -> SandboxSession:
        """Return a sandbox by name.

        Raises:
            SessionGone: this owner has no such sandbox.
        """
        session = self.by_name.get(name)
        if session is not None and session.owner == owner and session.alive:
            return session
        raise SessionGone("there is no such sandbox: it was ended, its time is over, or the server was restarted")

    def of(self, owner: str) -> list[SandboxSession]:
        """Return the sandboxes of an owner, oldest first."""
        return [
            session
            for session in self.by_name.values()
            if session.owner == owner and session.alive and not session.brief
        ]

    async def close(self, session: SandboxSession) -> None:
        """End a sandbox and everything in it."""
        if self.by_name.pop(session.name, None) is not None:
            audit("close", session.owner, sandbox=session.name[:6])
            await asyncio.get_running_loop().run_in_executor(self._ending, session.sandbox.sync.kill)

    async def run(self, owner: str, code: str, *, stdin: str = "", timeout: float | None = None) -> RunResult:
        """Run a single Python program in a warm sandbox of the pool. Owners take turns.

        Args:
            timeout: seconds; see :meth:`seconds`.
        """
        seconds = self.seconds(timeout)
        self._admit_program()
        async with self._pool_lock:  # the pool is started on first use
            if self._pool is None:
                create = functools.partial(Pool, _CORES, limits=self.limits.limits, **chosen())
                self._pool = await asyncio.get_running_loop().run_in_executor(self._programs, create)
        pool, began = self._pool, False

        async def alone() -> RunResult:
            nonlocal began
            async with self.queue.turn(owner):
                began, self.counters.runs = True, self.counters.runs + 1
                call = functools.partial(pool.run, code, stdin=stdin, timeout=seconds)
                ran = await asyncio.get_running_loop().run_in_executor(self._programs, call)
                self.limiter.spend(owner, ran.seconds)
                return ran

        task = asyncio.ensure_future(alone())
        self._alone.add(task)
        task.add_done_callback(self._alone.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            if not began:  # a running program keeps its turn until its own limits end it
                task.cancel()
            raise

    @contextlib.asynccontextmanager
    async def brief(self, owner: str, limits: Limits | None = None) -> AsyncIterator[AsyncSandbox]:
        """Open a sandbox for the block. Owners take turns, also with callers of :meth:`run`."""
        self._admit_program()
        async with self.queue.turn(owner):
            self.counters.runs += 1
            session = await self.open(owner, limits=limits, brief=True)
            try:
                async with session.use() as sandbox:
                    yield sandbox
            finally:
                await self.close(session)

    def report(self) -> dict[str, Any]:
        pool = self._pool.health() if self._pool is not None else None
        return {"open": len(self.by_name), "most": self.limits.sandboxes, "pool": pool}

    def start(self) -> None:
        """Start to end expired sandboxes."""
        loop = asyncio.get_running_loop()
        threads = _OTHERS + _CALLS * self.limits.sandboxes
        loop.set_default_executor(ThreadPoolExecutor(threads, thread_name_prefix="sandbox"))
        self._reaper = loop.create_task(self._reap())

    async def stop(self) -> None:
        self.draining = True
        if self._reaper is not None:
            self._reaper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reaper
        ending: list[Awaitable[None]] = [*map(self.close, list(self.by_name.values()))]
        if self._pool is not None:
            ending.append(asyncio.get_running_loop().run_in_executor(self._ending, self._pool.close))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await asyncio.gather(*ending)
        for threads in (self._ending, self._programs):
            threads.shutdown(wait=False, cancel_futures=True)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _admit(self, owner: str) -> None:
        limits = self.limits
        mine = sum(session.owner == owner for session in self.by_name.values()) + self._opening.count(owner)
        problem = ""
        if self.draining:
            problem = "the server is about to stop"
        elif len(self.by_name) + len(self._opening) >= limits.sandboxes:
            problem = f"all {limits.sandboxes} sandboxes of the server are taken (--sandboxes)"
        elif 0 < self.limiter.quota(owner).sessions <= mine:
            problem = f"all {mine} sandboxes of this client are taken (the server's --per-client)"
        if problem:
            self.counters.refused += 1
            raise ServerFull(problem, retry_after=5.0, draining=self.draining)

    def _admit_program(self) -> None:
        if self.draining or self.queue.waiting >= self.limits.waiting:
            self.counters.refused += 1
            raise ServerFull(f"{self.queue.waiting} programs wait already", retry_after=1.0, draining=self.draining)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(_REAP_EVERY)
            now, limits = time.monotonic(), self.limits
            ended = [
                session
                for session in self.by_name.values()
                if not session.alive
                or not self.holds(session.owner)
                or (now - session.used > limits.idle and not session.busy)
                or now - session.opened > limits.total
            ]
            for session in ended:
                self.counters.expired += 1
                try:
                    await self.close(session)
                except Exception:
                    logger.exception("a sandbox could not be ended")

    def _discard(self, starting: asyncio.Future[Sandbox]) -> None:
        """End a sandbox whose client has given up."""
        if not starting.cancelled() and starting.exception() is None:
            asyncio.get_running_loop().run_in_executor(self._ending, starting.result().kill)


def _seconds(seconds: Any, usual: float, most: float) -> float:
    if seconds is None:
        return usual
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise UsageError(f"a timeout is a number of seconds above 0, not {seconds!r:.40}")
    return float(min(seconds, most))
