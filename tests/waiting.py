"""Waiting for what comes true soon."""

import time


def eventually(true, seconds=10.0):
    """What ``true()`` returned last: the first true value, or a false one after so many seconds."""
    end = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.05)
    return found
