"""The descendants of a process, and how to end them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

#: Seconds that the end of descendants is waited for.
_PATIENCE = 5.0


def parents() -> dict[int, int]:
    """The parent of every visible process on this machine; empty without /proc."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            found[int(entry.parent.name)] = int(entry.read_text(errors="replace").rpartition(")")[2].split()[1])
    return found


def below(*roots: int) -> set[int]:
    """All descendants of the roots, without the roots."""
    by_parent: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        by_parent.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        children = set(by_parent.get(waiting.pop(), ())) - found
        found |= children
        waiting += children
    return found - set(roots)


def kill(pids: set[int]) -> None:
    """Kill processes. Those already gone are skipped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_all_below() -> None:
    """Kill every descendant of this process, including those started meanwhile, and reap them."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        kill(below(os.getpid()))
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def kill_orphans(own: set[int]) -> None:
    """Kill the orphans that this single-threaded process inherited; ``own`` are the processes that it
    started itself, and the ones that are gone are removed from it."""
    children = children_of_thread("thread-self")
    own &= children
    orphans = children - own
    if orphans:
        kill(orphans | below(*orphans))


class Children:
    """Which environment of a worker started which processes: those that appeared in its thread during its calls.

    Linux lists the children of every thread apart; those whose own parent ended come to the main thread. Elsewhere
    nothing is known here, and all end with the worker.
    """

    def __init__(self) -> None:
        self._of: dict[int, set[int]] = {}
        self._lock = threading.Lock()

    def note(self, number: int) -> None:
        """Record that a call of an environment ended in this thread."""
        pids = children_of_thread("thread-self")
        if not pids:
            return
        with self._lock:
            known: set[int] = set().union(*self._of.values()) if self._of else set()
            self._of.setdefault(number, set()).update(pids - known)

    def end(self, number: int) -> None:
        """End what a closed environment left. Orphans are ended with the last environment that started anything."""
        self.note(number)
        with self._lock:
            if number not in self._of:
                return
            pids = self._of.pop(number)
            if not self._of:
                pids |= children_of_thread(f"self/task/{os.getpid()}")
        by_parent = parents()
        pids = {pid for pid in pids if by_parent.get(pid) == os.getpid()}
        kill(pids | below(*pids))
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def children_of_thread(thread: str) -> set[int]:
    """The running processes that a thread (named as below /proc) started."""
    try:
        with open(f"/proc/{thread}/children") as file:
            return set(map(int, file.read().split()))
    except (OSError, ValueError):
        return set()
