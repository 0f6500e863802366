"""What every thread of a worker is doing, in memory that outlives the worker."""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
from typing import Any

_SLOT = struct.Struct("QQQ")
_WORD = struct.Struct("Q")
_SUSPECT, _LAST, _SLOTS = 0, 8, 16

#: Audit events of Python's: of those who signal, and of those who start processes or set limits.
_EXITS = frozenset({"os.kill", "os.killpg", "signal.pthread_kill"})
_CHANGES = frozenset(
    {"os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
    | {"resource.setrlimit", "resource.prlimit", "ctypes.dlopen", "ctypes.dlsym"}
)


class Marks:
    """For every thread the number of the environment that it runs (0 for none), its ident and its kernel id.

    A page of shared memory: the worker's threads write, what watches over the worker reads. Besides, which environment
    began a call last, and which was the last to signal, exit or break the connection.
    """

    def __init__(self, threads: int):
        self.threads = threads + 1
        self._memory = mmap.mmap(-1, _SLOTS + _SLOT.size * self.threads)
        self._local = threading.local()
        self._taken = 0
        self._lock = threading.Lock()
        self._pid = 0

    # -- in the worker -------------------------------------------------------------------------------------------------

    def begin(self, number: int) -> None:
        """Record that this thread runs an environment from now on."""
        _SLOT.pack_into(self._memory, self._slot(), number, threading.get_ident(), threading.get_native_id())
        _WORD.pack_into(self._memory, _LAST, number)

    def end(self) -> None:
        """Record that this thread runs no environment any more."""
        _WORD.pack_into(self._memory, self._slot(), 0)

    def _slot(self) -> int:
        at: int | None = getattr(self._local, "at", None)
        if at is None:
            with self._lock:
                at = self._local.at = _SLOTS + _SLOT.size * min(self._taken, self.threads - 1)
                self._taken += 1
        return at

    def suspect(self, number: int) -> None:
        """Record that this environment is about to end the worker."""
        if number:
            _WORD.pack_into(self._memory, _SUSPECT, number)

    def watch_exits(self) -> None:
        """Record which environment signals the process or leaves it with ``os._exit``."""
        self._pid = os.getpid()

        def heard(event: str, args: tuple[Any, ...]) -> None:
            if event in _EXITS and os.getpid() == self._pid:
                self._suspect_me()
            elif event in _CHANGES:
                self._local.changed = True

        def leave(status: int) -> None:
            if os.getpid() == self._pid:
                self._suspect_me()
            really(status)

        really = os._exit
        sys.addaudithook(heard)
        os._exit = leave  # type: ignore[assignment]

    def changed(self) -> bool:
        """Whether this thread started a process or set a limit since the last check."""
        changed: bool = getattr(self._local, "changed", False)
        self._local.changed = False
        return changed

    def _suspect_me(self) -> None:
        at = getattr(self._local, "at", None)
        if at is not None:
            self.suspect(_WORD.unpack_from(self._memory, at)[0])

    # -- in what watches over it ---------------------------------------------------------------------------------------

    def calls(self) -> list[tuple[int, int, int]]:
        """(environment, ident of the thread, its kernel id) of all calls under way."""
        slots = (_SLOT.unpack_from(self._memory, _SLOTS + _SLOT.size * i) for i in range(self.threads))
        return [slot for slot in slots if slot[0]]

    def blame(self, ident: int = 0) -> list[int]:
        """Which environments may have ended the worker: a thread's, those marked as suspect, or the last to begin.

        Args:
            ident: of the thread that crashed, if that is known.
        """
        calls = self.calls()
        by_thread = [number for number, thread, _ in calls if ident and thread == ident]
        suspect, last = (_WORD.unpack_from(self._memory, at)[0] for at in (_SUSPECT, _LAST))
        running = {number for number, _, _ in calls}
        if by_thread:
            return by_thread
        if suspect:
            return [suspect]
        return [last] if last in running else sorted(running)
