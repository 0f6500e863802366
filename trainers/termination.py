"""SIGTERM, with which Slurm and Kubernetes end a run: save, then end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

#: The exit code of a process that SIGTERM ended.
EXIT_CODE = 128 + signal.SIGTERM


class Terminated(SystemExit):
    """SIGTERM ended a run after its checkpoint was saved; it can be resumed."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


class Termination:
    """Turns SIGTERM into a KeyboardInterrupt where work can be given up, and waits elsewhere."""

    def __init__(self) -> None:
        self.asked = False
        self._busy = False
        self._process = os.getpid()

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGTERM while the block runs, in the main thread and unless the program handles it itself."""
        here = threading.current_thread() is threading.main_thread()
        if not here or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            yield
            return
        interrupt = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGTERM, self._note)
        if interrupt == signal.SIG_IGN:  # as in the background of a shell
            signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, interrupt)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Run a block to its end before a KeyboardInterrupt."""
        self._busy = True
        yield
        self._busy = False
        if self.asked:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked process has no run to save
            os._exit(EXIT_CODE)
        first, self.asked = not self.asked, True
        if first and not self._busy:
            signal.raise_signal(signal.SIGINT)  # which rollouts know from errors of environments

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
