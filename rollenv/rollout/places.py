"""Workers by a name, as command lines and recipes have it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rollenv.core import UsageError
from rollenv.rollout.workers import Workers

WORKERS_HELP = "Where environments live: inline (this process), a number of worker processes, or ray:ACTORS."


@contextlib.contextmanager
def make_workers(name: str) -> Iterator[Workers | None]:
    """The place for environments that a name stands for (None for this process); closed when the block ends.

    Raises:
        UsageError: for an unknown name.
    """
    kind, _, number = name.rpartition(":")
    if name == "inline":
        yield None
    elif kind == "" and number.isdecimal() and int(number):
        from rollenv.rollout.processes import ProcessWorkers

        with ProcessWorkers(int(number)) as pool:
            yield pool
    elif kind == "ray" and number.isdecimal() and int(number):
        from rollenv.rollout.ray_workers import connected

        with connected(int(number)) as actors:
            yield actors
    else:
        raise UsageError(f"there are no workers {name!r}; {WORKERS_HELP}")
