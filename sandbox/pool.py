"""Warm sandboxes for independent runs: each run is a fresh fork, after which its sandbox is clean.

Timeouts may adapt to the times of correct programs (RollPacker, NSDI 2026, section on adaptive timeouts).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from rollenv.sandbox import backends
from rollenv.sandbox.errors import InvalidArgument, PoolFull, SandboxDied, SandboxError, SandboxFileError
from rollenv.sandbox.inside.protocol import Finished, RunProgram
from rollenv.sandbox.types import Limits, Output, RunResult, died, exit_code, to_bytes
from rollenv.sandbox.worker import SandboxWorker

#: Seconds until a slot retries after its sandbox did not start: the initial value, doubled each time, and the maximum.
BACKOFF = (0.5, 30.0)
#: Idle seconds after which a sandbox is probed before it is used again.
PROBE_AFTER = 30.0
#: Maximum seconds that the end waits for a sandbox that is just starting.
_STARTING = 30.0
#: Number of recent runs for the quantiles of run times.
_KEPT_TIMES = 1000


@dataclass(slots=True)
class _Slot:
    """A slot for one sandbox, and its recent failures."""

    number: int
    worker: SandboxWorker | None = None
    failures: int = 0
    retry_at: float = 0.0
    last_used: float = field(default_factory=time.monotonic)
    last_error: str = ""


class Pool:
    """Runs programs in warm sandboxes, from any thread, first come, first served.

    A sandbox that dies or fails a probe is replaced. A slot whose sandbox does not start is quarantined, each time for
    twice as long.

    Args:
        size: number of sandboxes; by default one for each processor core.
        backend, packages, require, settings: arguments of :meth:`rollenv.sandbox.Sandbox.create`.
        max_waiting: maximum waiting runs; one more raises :class:`PoolFull`.
    """

    def __init__(
        self,
        size: int | None = None,
        backend: str = "local",
        *,
        limits: Limits | None = None,
        packages: Sequence[str] = (),
        require: Sequence[str] = (),
        max_waiting: int = 10_000,
        **settings: Any,
    ):
        if size is not None and size < 1:
            raise InvalidArgument(f"a pool needs at least one sandbox, got size={size}")
        self.limits, self.backend = limits or Limits(), backend
        self._start = functools.partial(backends.start, backend, self.limits, packages, require=require, **settings)
        self._slots = [_Slot(i) for i in range(size or os.cpu_count() or 1)]
        self._free = deque(self._slots)
        self._queue: deque[queue.SimpleQueue[_Slot | None]] = deque()
        self._lock = threading.Lock()
        self._max_waiting, self._closed = max_waiting, False
        self._counts: Counter[str] = Counter()
        self._seconds: deque[float] = deque(maxlen=_KEPT_TIMES)
        self._slots[0].worker = self._start()  # raises now if sandboxes cannot work at all
        self._warming = threading.Thread(target=self._warm, name="sandbox-warm", daemon=True)
        self._warming.start()

    def run(self, code: str, *, stdin: str | bytes = "", timeout: float | None = None) -> RunResult:
        """Run a program; see :class:`rollenv.sandbox.types.Runner`.

        A program that ends its sandbox twice is reported as killed by a signal.

        Args:
            timeout: seconds; by default from the limits.

        Raises:
            PoolFull: too many runs are waiting.
            SandboxError: no sandbox can be started, or the pool is closed.
        """
        seconds = self.limits.seconds if timeout is None else timeout
        if not seconds > 0:
            raise InvalidArgument(f"a timeout must be above 0 s, got {timeout!r}")
        data = to_bytes(stdin)
        slot = self._acquire()
        try:
            done, output = self._run_twice(slot, code, data, seconds)
        finally:
            self._release(slot)
        output.end()
        self._counts["timed_out"] += done.timed_out
        self._counts["runs"] += 1
        self._seconds.append(done.seconds)
        flags = (done.timed_out, done.seconds, done.truncated, done.out_of_memory)
        return RunResult(output.text("stdout"), output.text("stderr"), exit_code(done), *flags)

    def _run_twice(self, slot: _Slot, code: str, stdin: bytes, seconds: float) -> tuple[Finished, Output]:
        """Run a program again if its sandbox ends: once may be anything's fault, twice is the program's."""
        for _ in range(2):
            worker, output = self._ready(slot), Output()
            request = RunProgram(**worker.limits_of(seconds), code=code, again=True)
            try:
                return worker.run(request, stdin, wait=seconds + 10, on_bytes=output.take), output
            except (SandboxDied, SandboxFileError):
                self._counts["died"] += 1
                self._discard(slot)
                if self._closed:
                    raise SandboxError("the pool was closed while the program was running") from None
        output.take("stderr", b"The sandbox ended while the program was running.\n")
        return died(), output

    # -- slots ------------------------------------------------------------------------------------------------------

    def _acquire(self) -> _Slot:
        """Wait for a free slot, in order of the calls."""
        with self._lock:
            if self._closed:
                raise SandboxError("the pool is closed")
            if self._free:
                # The sandbox idle for longest, else a slot without quarantine, else the first whose quarantine ends.
                now = time.monotonic()
                best = min(self._free, key=lambda p: (p.worker is None, max(p.retry_at, now), p.last_used))
                self._free.remove(best)
                return best
            if len(self._queue) >= self._max_waiting:
                self._counts["refused"] += 1
                raise PoolFull(f"{len(self._queue)} runs are waiting for {len(self._slots)} sandboxes; try again later")
            turn = queue.SimpleQueue[_Slot | None]()
            self._queue.append(turn)
        slot = turn.get()
        if slot is None:
            raise SandboxError("the pool was closed while the run was waiting")
        return slot

    def _warm(self) -> None:
        """Start the sandboxes that no run has needed yet."""
        for slot in self._slots[1:]:
            with self._lock:
                if self._closed or slot.worker is not None or slot not in self._free:
                    continue
                self._free.remove(slot)
            with contextlib.suppress(Exception):  # the health report has the error, and the next run retries
                self._ready(slot)
            self._release(slot)

    def _release(self, slot: _Slot) -> None:
        slot.last_used = time.monotonic()
        with self._lock:
            if self._closed:
                self._discard(slot)
            elif self._queue:
                self._queue.popleft().put(slot)
                return
            self._free.append(slot)

    def _ready(self, slot: _Slot) -> SandboxWorker:
        """Return the slot's sandbox if it is healthy, else a new one."""
        if slot.worker is not None and not self._is_healthy(slot.worker, time.monotonic() - slot.last_used):
            self._counts["replaced"] += 1
            self._discard(slot)
        if slot.worker is None:
            time.sleep(max(0.0, min(slot.retry_at - time.monotonic(), BACKOFF[1])))
            try:
                slot.worker = self._start()
            except Exception as error:
                slot.failures += 1
                slot.retry_at = time.monotonic() + min(BACKOFF[0] * 2 ** (slot.failures - 1), BACKOFF[1])
                slot.last_error = str(error)
                raise
            slot.failures, slot.last_error = 0, ""
        return slot.worker

    @staticmethod
    def _is_healthy(worker: SandboxWorker, idle: float) -> bool:
        """Return whether a sandbox is alive, and after an idle time also able to run code."""
        if not worker.alive or idle < PROBE_AFTER:
            return worker.alive
        try:
            output, request = Output(), RunProgram(**worker.limits_of(3), code="print(6 * 7)", again=True)
            worker.run(request, wait=5, on_bytes=output.take)
        except SandboxError:
            return False
        return output.text("stdout") == "42\n"

    def _discard(self, slot: _Slot) -> None:
        worker, slot.worker = slot.worker, None
        if worker is not None:
            worker.close()

    # -- health and end ----------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Return the pool's state: slots, quarantine, counts, and run times in seconds."""
        with self._lock:
            now = time.monotonic()
            times = sorted(self._seconds)
            running = len(self._slots) - len(self._free)
            return {
                "backend": self.backend,
                "size": len(self._slots),
                "alive": sum(p.worker is not None and p.worker.alive for p in self._slots),
                "running": running,
                "waiting": len(self._queue),
                "quarantined": [
                    {"place": p.number, "failures": p.failures, "seconds_left": p.retry_at - now, "error": p.last_error}
                    for p in self._slots
                    if p.retry_at > now
                ],
                **{name: self._counts[name] for name in ("runs", "timed_out", "died", "replaced", "refused")},
                "seconds_p50": times[len(times) // 2] if times else None,
                "seconds_p95": times[int(0.95 * len(times))] if times else None,
            }

    def close(self) -> None:
        """End all sandboxes; waiting and running calls raise. Further calls have no effect."""
        with self._lock:
            self._closed = True
            waiting_runs = list(self._queue)
            self._queue.clear()
        for turn in waiting_runs:
            turn.put(None)
        self._warming.join(_STARTING)  # a container whose start is cut off would outlive this process
        for slot in self._slots:
            self._discard(slot)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@functools.cache
def _shared(process: int, purpose: str, packages: tuple[str, ...], settings: tuple[tuple[str, Any], ...]) -> Pool:
    pool = Pool(packages=packages, **dict(settings))
    atexit.register(pool.close)
    return pool


_sharing = threading.Lock()


def shared_pool(packages: Sequence[str] = (), *, purpose: str = "programs", **settings: Any) -> Pool:
    """Return this process's pool for tools and rewards, started on first use and closed at exit.

    Args:
        purpose: programs for another purpose run in other sandboxes.
        settings: further arguments of :class:`Pool`; by default the backend is that of ``$ROLLENV_SANDBOX``.
    """
    settings = settings or backends.chosen()
    with _sharing:
        return _shared(os.getpid(), purpose, tuple(packages), tuple(sorted(settings.items())))


class AdaptiveTimeout:
    """T = min(max(factor * anchor, least), most), where the anchor is the longest time of a correct program so far.

    Each test case has an anchor, shared by all threads. Before the first correct program, the timeout is ``most``.

    Args:
        factor: multiple of the anchor (the paper's lambda).
        least, most: bounds of the timeout in seconds.
    """

    def __init__(self, factor: float = 1.5, least: float = 2.0, most: float = 30.0):
        if not (factor >= 1 and 0 < least <= most):
            raise InvalidArgument(f"factor must be at least 1 and 0 < least <= most; got {factor}, {least} and {most}")
        self.factor, self.least, self.most = factor, least, most
        self._anchors: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def timeout(self, case: Hashable) -> float:
        """Return the timeout of the next program on a test case, in seconds."""
        anchor = self._anchors.get(case)
        return self.most if anchor is None else min(max(self.factor * anchor, self.least), self.most)

    def record(self, case: Hashable, seconds: float, correct: bool) -> None:
        """Record the time of a program that ended by itself."""
        if correct:
            with self._lock:
                self._anchors[case] = max(seconds, self._anchors.get(case, 0.0))
