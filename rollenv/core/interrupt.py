"""Interrupts of the main thread by the program itself, which end what Ctrl-C would end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

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
