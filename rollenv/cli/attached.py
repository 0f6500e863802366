"""``python -m rollenv.cli.attached OPTIONS``: a ``rollenv serve`` that ends when its standard input is closed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


def _watch() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    for _ in range(2):  # the second SIGTERM does not wait for sessions
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.0)


if __name__ == "__main__":
    from rollenv.cli.main import main

    threading.Thread(target=_watch, daemon=True).start()
    sys.argv.insert(1, "serve")
    main()
