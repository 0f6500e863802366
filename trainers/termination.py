"""SIGTERM, with which Slurm and Kubernetes end a run: save, then end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from rollenv.core.interrupt import interrupt, interruptible

#: The exit code of a process that SIGTERM ended.
EXIT_CODE = 128 + signal.SIGTERM


class Terminated(SystemExit):
    """SIGTERM ended a run after its checkpoint was saved; it can be resumed."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


class Termination:
    """Turns SIGTERM into a KeyboardInterrupt where work can be given up, and waits elsewhere.

    A program that has its own handler keeps it. Ray's is no program's own: it stays when Ray is shut down.
    """

    def __init__(self) -> None:
        self.asked = False
        self.stepping = threading.Lock()
        """Held while the state of the run changes."""
        self._busy = False
        self._process = os.getpid()
        handler = signal.getsignal(signal.SIGTERM)
        self._unhandled = handler == signal.SIG_DFL or getattr(handler, "__module__", "").startswith("ray.")

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGTERM while the block runs, in the main thread."""
        here = threading.current_thread() is threading.main_thread()
        if not here or not self._unhandled:
            yield
            return
        before = signal.signal(signal.SIGTERM, self._note)
        try:
            with interruptible():
                yield
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Run a block to its end before a KeyboardInterrupt."""
        self._busy = True
        with self.stepping:
            yield
        self._busy = False
        if self.asked:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked process has no run to save
            os._exit(EXIT_CODE)
        first, self.asked = not self.asked, True
        if first and not self._busy:
            interrupt()  # which rollouts know from errors of environments
