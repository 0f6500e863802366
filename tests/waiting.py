"""Waiting for what comes true soon."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any


def eventually(true, seconds=30.0):
    """What ``true()`` returned last: the first true value, or a false one after so many seconds."""
    end = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def running(box: Any, code: str) -> Iterator[list[Any]]:
    """Code that has begun in a sandbox, for a block, after which it has to end; the list then holds its result."""
    begun, ended = threading.Event(), []

    def run() -> None:
        ended.append(box.run_code(f"print('begun', flush=True)\n{code}", on_stdout=lambda text: begun.set()))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(60)
        yield ended
    finally:
        thread.join(60)
    assert ended
