"""How many CPU threads a run should use."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")


def idle_cores(seconds: float = 0.3) -> int:
    """How many of the cores that this process may use have no other work, measured for a moment; at least 1.

    Threads of a small model wait for each other after every operation. One that another process keeps from its core
    holds up all of them: with a busy neighbour, two threads on two cores were ten times slower than one.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if not _STAT.exists():
        return len(cores)
    before = _busy()
    time.sleep(seconds)
    after = _busy()
    work = sum(min(1.0, (after[core] - before[core]) / seconds) for core in cores if core in before and core in after)
    return max(1, len(cores) - round(work))


def _busy() -> dict[int, float]:
    """Seconds of work of every core since the machine started."""
    ticks, busy = os.sysconf("SC_CLK_TCK"), {}
    for line in _STAT.read_text().splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdigit():
            user, nice, system, _idle, _iowait, *rest = map(int, columns)
            busy[int(name[3:])] = (user + nice + system + sum(rest[:3])) / ticks
    return busy
