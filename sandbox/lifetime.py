"""How long a sandbox may live."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Lifetime:
    """Ends something at a time that can be moved. Threads may share it.

    Args:
        end: called when the time has come.
    """

    def __init__(self, end: Callable[[], None]):
        self._end = end
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self.ends_at: float | None = None

    def set(self, seconds: float | None) -> None:
        """Set the end to this many seconds from now; None for never."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self.ends_at = None
            if seconds is not None:
                self.ends_at = time.time() + seconds
                self._timer = threading.Timer(seconds, self._end)
                self._timer.daemon = True
                self._timer.start()
