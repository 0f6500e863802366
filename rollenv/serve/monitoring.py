"""Metrics for Prometheus, and readiness checks: an environment of each family plays a turn, a sandbox runs code."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import functools
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rollenv.core.errors import RollenvError
from rollenv.core.needs import extra
from rollenv.core.registry import list_envs
from rollenv.core.version import __version__
from rollenv.remote.protocol import ServerFull
from rollenv.serve.responses import EXPECTED
from rollenv.serve.sandboxes import SandboxManager
from rollenv.serve.sessions import SessionManager

with extra("serve", "rollenv serve"):
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_LATEST

#: Buckets of call times in seconds, from a cheap step to a slow reset.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

#: Maximum number of recent call times.
_RECENT = 2000


class ServerMetrics(Collector):
    """The metrics of one server, collected on request."""

    def __init__(self, sessions: SessionManager, sandboxes: SandboxManager):
        self._sessions, self._sandboxes = sessions, sandboxes
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._times = {name: [0.0] * (len(_BUCKETS) + 2) for name in ("reset", "step", "other")}
        """Number of calls in each bucket and the sum of their seconds, by method."""
        self.recent: deque[float] = deque(maxlen=_RECENT)
        """Seconds of the last calls; a reader clears it."""
        sessions.on_call_time = self._add_time

    def _add_time(self, method: str, seconds: float) -> None:
        times = self._times.get(method) or self._times["other"]
        times[bisect.bisect_left(_BUCKETS, seconds)] += 1
        times[-1] += seconds
        self.recent.append(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        sessions, sandboxes = self._sessions, self._sandboxes
        yield InfoMetricFamily("rollenv_server", "Version of the server.", {"version": __version__})
        for name, value, help_text in (
            ("sessions_open", len(sessions.by_name), "Sessions of environments."),
            ("sessions_max", sessions.limits.sessions, "Maximum number of sessions."),
            ("calls_waiting", sessions.queue.waiting, "Calls of environments that wait for their turn."),
            ("sandboxes_open", len(sandboxes.by_name), "Sandboxes of clients."),
            ("sandboxes_max", sandboxes.limits.sandboxes, "Maximum number of sandboxes."),
            ("programs_waiting", sandboxes.queue.waiting, "Programs that wait for the pool."),
            ("draining", int(sessions.draining), "1 when the server is about to stop."),
        ):
            yield GaugeMetricFamily(f"rollenv_{name}", help_text, value)
        for what, counts in (("session", asdict(sessions.counters)), ("sandbox", asdict(sandboxes.counters))):
            for name, value in counts.items():
                yield CounterMetricFamily(f"rollenv_{what}_{name}", f"{name} of {what} since the start.", value)
        help_text = "Time of successful calls of environments, including communication with workers."
        calls = HistogramMetricFamily("rollenv_env_call_seconds", help_text, labels=["method"])
        for name, (*each, total) in self._times.items():
            bounds = [*map(str, _BUCKETS), "+Inf"]
            calls.add_metric([name], list(zip(bounds, itertools.accumulate(each), strict=True)), total)
        yield calls
        yield from self._workers()
        yield from self._envs()

    def _workers(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("rollenv_worker_up", "1 if a worker process is up.", labels=["worker"])
        envs = GaugeMetricFamily("rollenv_worker_envs", "Environments in a worker process.", labels=["worker"])
        deaths = CounterMetricFamily("rollenv_worker_deaths", "Deaths of a worker.", labels=["worker"])
        for row in self._sessions.workers.report():
            name = [str(row["worker"])]
            up.add_metric(name, float(row["state"] == "up"))
            envs.add_metric(name, float(row["envs"]))
            deaths.add_metric(name, float(row["deaths"]))
        yield from (up, envs, deaths)

    def _envs(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "rollenv_env_events", "Successful calls, ends of episodes and failures.", labels=["env", "event"]
        )
        for record in self._sessions.health.envs.values():
            for event, count in record.counts.items():
                events.add_metric([record.name, event], count)
        yield events


#: Seconds for which results of checks are reused, and timeout of one check.
_FRESH, _SECONDS = 30.0, 20.0

#: Checks at the same time. The first of a family imports it in a worker.
_LANES = 3

#: The owner of the sessions and sandboxes of checks.
OWNER = "(readiness check)"

_PROGRAM, _PRINTED = "print(6 * 7)", "42\n"


@dataclass(frozen=True)
class Check:
    """The result of a check."""

    ok: bool
    detail: str
    seconds: float
    at: float
    """End of the check, in seconds since 1970."""


def families() -> dict[str, str]:
    """Map each namespace to its first environment whose needs are met, including namespaces of plug-ins."""
    first: dict[str, str] = {}
    for env_spec in list_envs():
        if env_spec.namespace not in first and not env_spec.missing and not env_spec.nondeterministic:
            first[env_spec.namespace] = env_spec.id
    return first


class ReadinessChecks:
    """Runs the checks on request, at most every half minute."""

    def __init__(self, sessions: SessionManager, sandboxes: SandboxManager):
        self._sessions, self._sandboxes = sessions, sandboxes
        self._envs = families()
        self.checks: dict[str, Check] = {}
        self._began = 0.0
        self._task: asyncio.Task[None] | None = None

    async def problems(self) -> dict[str, str]:
        """Return the failed checks with their errors. Only the first caller waits; others get the last results."""
        if self._sessions.draining:
            return {"server": "it is about to stop"}
        if self._task is None or (self._task.done() and time.monotonic() - self._began > _FRESH):
            self._began, self._task = time.monotonic(), asyncio.get_running_loop().create_task(self._round())
        if len(self.checks) < len(self._calls()):
            await asyncio.shield(self._task)
        return {name: check.detail for name, check in self.checks.items() if not check.ok}

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    # -- inside --------------------------------------------------------------------------------------------------------

    def _calls(self) -> dict[str, Callable[[], Awaitable[str]]]:
        calls: dict[str, Callable[[], Awaitable[str]]] = {
            name: functools.partial(self._plays, env_id) for name, env_id in self._envs.items()
        }
        return calls | ({"sandbox": self._runs} if self._sandboxes.limits.sandboxes else {})

    async def _round(self) -> None:
        lanes = min(_LANES, self._sessions.limiter.quota(OWNER).sessions or _LANES)
        calls = [*self._calls().items()]
        await asyncio.gather(*(self._check(calls[lane::lanes]) for lane in range(lanes)))

    async def _check(self, calls: list[tuple[str, Callable[[], Awaitable[str]]]]) -> None:
        for name, call in calls:
            began = time.monotonic()
            try:
                async with asyncio.timeout(_SECONDS):
                    ok, detail = True, await call()
            except ServerFull as error:
                ok, detail = True, f"not checked: {error}"  # a busy server works
            except TimeoutError:
                ok, detail = False, f"it took longer than {_SECONDS:g} s"
            except (*EXPECTED, OSError) as error:
                ok, detail = False, str(error)
            self.checks[name] = Check(ok, detail, time.monotonic() - began, time.time())
            if not ok:
                logger.warning("the check of %s failed: %s", name, detail)

    async def _plays(self, env_id: str) -> str:
        async with self._sessions.brief(OWNER, env_id) as session:
            answer: list[Any] = await session.call("reset", [0])
            if not answer[0]:
                raise RollenvError(f"{env_id} shows nothing after a reset")
            await session.call("step", [""])
        return f"{env_id} was reset and played a turn"

    async def _runs(self) -> str:
        ran = await self._sandboxes.run(OWNER, _PROGRAM)
        if ran.stdout != _PRINTED:
            raise RollenvError(f"a program that prints {_PRINTED!r} printed {ran.stdout!r:.80} {ran.stderr!r:.200}")
        return "a program ran"
