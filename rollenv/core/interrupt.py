"""Interrupts of the main thread that end what Ctrl-C would end: by the program itself, and by SIGTERM or SIGHUP."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

_own = threading.Event()


def interrupt() -> None:
    """Interrupt the main thread with SIGINT, from any thread."""
    _own.set()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let :func:`interrupt` raise KeyboardInterrupt where SIGINT is ignored, as in the background of a shell."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, _raise_own)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _raise_own(number: int, frame: FrameType | None) -> None:
    if _own.is_set():
        _own.clear()
        raise KeyboardInterrupt


#: The exit code of a process that SIGTERM ended.
EXIT_CODE = 128 + signal.SIGTERM
#: Seconds in which signals are one: `timeout` sends two at once.
_AGAIN = 1.0


class Terminated(SystemExit):
    """SIGTERM or SIGHUP ended a run after its checkpoint was saved; it can be resumed."""

    code = EXIT_CODE


class Termination:
    """Turns SIGTERM and SIGHUP into a KeyboardInterrupt where work can be given up, and waits elsewhere.

    As with Ctrl-C, the first waits for an environment that does not return, and the second does not. A program that has
    its own handler keeps it. Ray's is no program's own: it stays when Ray is shut down.
    """

    def __init__(self) -> None:
        self.asked = False
        self.stepping = threading.Lock()
        """Held while the state of the run changes."""
        self.busy = False
        """True while further signals do nothing, as work has to come to its end."""
        self._last = -math.inf
        self._process = os.getpid()
        self._unhandled = [n for n in (signal.SIGTERM, signal.SIGHUP) if _is_free(signal.getsignal(n))]

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals while the block runs, in the main thread."""
        here = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, self._note) for number in self._unhandled if here}
        try:
            with interruptible():
                yield
        except OSError as error:
            if error.errno != errno.EIO or not _print_nowhere():
                raise
            self.asked = True  # as nobody told it: hangups are ignored under nohup
            raise KeyboardInterrupt from error
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Run a block to its end before a KeyboardInterrupt."""
        self.busy = True
        with self.stepping:
            yield
        self.busy = False
        if self.asked:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked process has no run to save
            os._exit(EXIT_CODE)
        if number == signal.SIGHUP:
            _print_nowhere()
        self.asked, before, self._last = True, self._last, time.monotonic()
        if self._last - before > _AGAIN and not self.busy:
            interrupt()  # which rollouts know from errors of environments


def _print_nowhere() -> bool:
    """Let what is printed from now on go nowhere if its terminal is gone; return whether it is."""
    gone = False
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            gone = True
    return gone


def _is_free(handler: Any) -> bool:
    """Return whether no program has set this handler of a signal for itself."""
    ours = isinstance(getattr(handler, "__self__", None), Termination)
    return ours or handler == signal.SIG_DFL or getattr(handler, "__module__", "").startswith("ray.")
