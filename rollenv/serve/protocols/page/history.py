"""Metrics of a server during the last ten minutes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import asdict
from typing import Any

import numpy as np

from rollenv.report.plain import plain
from rollenv.serve.server import EnvServer

#: Seconds between two samples, and number of samples.
_EVERY, _KEPT = 5.0, 120

#: Kinds of failures of environments.
_FAILURES = ("raised", "wrong", "hung", "lost", "differs")

_NAMES = ("time", "sessions", "calls", "failures", "p50", "p99", "sandboxes")


class MetricsHistory:
    """Samples of a server's metrics during the last ten minutes."""

    def __init__(self, server: EnvServer):
        self._server = server
        self._rows: deque[tuple[float | None, ...]] = deque(maxlen=_KEPT)
        self._calls = self._failures = 0
        self._task: asyncio.Task[None] | None = None
        server.opening.append(self._start)
        server.closing.append(self._stop)

    def columns(self) -> dict[str, Any]:
        """Return the samples as one list for each metric, oldest first, and their interval ``every`` in seconds.

        Sessions and sandboxes are counts, calls and failures are rates per second; times are in seconds, and None
        without calls.
        """
        columns = dict(zip(_NAMES, zip(*self._rows, strict=True), strict=True)) if self._rows else {}
        return {"every": _EVERY} | {name: list(columns.get(name, ())) for name in _NAMES}

    def readiness(self) -> dict[str, Any]:
        """Return the results of the last checks by name."""
        return {name: plain(asdict(check)) for name, check in self._server.readiness.checks.items()}

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            sessions = self._server.sessions
            calls = sessions.counters.calls
            failures = sum(record.counts[kind] for record in sessions.health.envs.values() for kind in _FAILURES)
            times = list(self._server.metrics.recent)
            self._server.metrics.recent.clear()
            p50, p99 = np.quantile(times, (0.5, 0.99)).tolist() if times else (None, None)
            rates = ((calls - self._calls) / _EVERY, (failures - self._failures) / _EVERY)
            self._calls, self._failures = calls, failures
            self._rows.append(
                (time.time(), len(sessions.by_name), *rates, p50, p99, len(self._server.sandboxes.by_name))
            )
