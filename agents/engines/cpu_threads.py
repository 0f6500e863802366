"""A run's CPU threads, at its start and while other work comes and goes, and the memory that it keeps."""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

_STAT = Path("/proc/stat")

#: Seconds between two measurements of the machine's other load.
_LOOK_EVERY = 2.0

#: Numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

logger = logging.getLogger(__name__)


class CpuThreads:
    """Sets torch's number of CPU threads: fixed, or the number of idle cores; and keeps memory for the next tensors.

    Threads of a small model synchronise after every operation, so one that waits for a busy core delays all of them:
    beside a busy process, two threads on two cores were ten times slower than one.

    Args:
        fixed: the number of threads; 0 for the number of idle cores.
        sharers: number of threads of this process that call torch at the same time and share the idle cores.
    """

    def __init__(self, fixed: int = 0, *, sharers: int = 1):
        self.fixed, self.sharers = fixed, sharers
        #: CPU seconds of this run's other processes, which do not count as other load.
        self.own_processes: Callable[[], float] = float
        self._set(fixed or max(1, idle_cores() // sharers))
        logger.info("%d CPU threads%s", self.count, "" if fixed else ": as many cores as were idle")
        self._before, self._own_before = _snapshot(), self.own_processes()
        keep_freed_memory()

    def adapt(self) -> None:
        """Measure the load of other processes since the last call, and set the number of threads to the idle cores."""
        now, own = _snapshot(), self.own_processes()
        seconds = now[0] - self._before[0]
        if self.fixed or seconds < _LOOK_EVERY or not _STAT.exists():
            return
        ours = now[2] - self._before[2] + own - self._own_before
        others = (now[1] - self._before[1] - ours) / seconds
        self._before, self._own_before = now, own
        count = max(1, (len(cores()) - round(max(0.0, others))) // self.sharers)
        if count != self.count:
            logger.info("%d CPU threads: other processes keep %.1f cores busy", count, others)
            self._set(count)

    def _set(self, count: int) -> None:
        self.count = count
        torch.set_num_threads(count)


def keep_freed_memory() -> None:
    """Let the C library (glibc) keep freed memory, up to 2 GB, for the next tensors.

    By default it returns each large tensor to the system, which then clears the same pages for the next one: a sixth of
    the time of drawing.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def idle_cores(seconds: float = 0.3) -> int:
    """Measure the number of idle cores that this process may use; at least 1."""
    ours = cores()
    if not _STAT.exists():
        return len(ours)
    before = _busy()
    time.sleep(seconds)
    after = _busy()
    work = sum(min(1.0, (after[core] - before[core]) / seconds) for core in ours if core in before and core in after)
    return max(1, len(ours) - round(work))


def cores() -> list[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _snapshot() -> tuple[float, float, float]:
    """Return the current time, the busy seconds of the cores so far, and the CPU seconds of this process."""
    busy = _busy() if _STAT.exists() else {}
    own = os.times()
    return time.monotonic(), sum(busy.get(core, 0.0) for core in cores()), sum(own[:4])


def _busy() -> dict[int, float]:
    """Return the busy seconds of every core since boot, without nice processes unless this one is nice too."""
    yields = os.nice(0) <= 0
    ticks, busy = os.sysconf("SC_CLK_TCK"), {}
    for line in _STAT.read_text().splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdigit():
            user, nice, system, _idle, _iowait, *rest = map(int, columns)
            busy[int(name[3:])] = (user + (0 if yields else nice) + system + sum(rest[:3])) / ticks
    return busy
