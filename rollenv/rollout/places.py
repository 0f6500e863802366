"""Workers by a name, as command lines and recipes have it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rollenv.core import UsageError
from rollenv.rollout.workers import Workers

WORKERS_HELP = "Where environments live: inline (this process), a number of worker processes, or ray:ACTORS."


def workers_of(name: str) -> tuple[str, int]:
    """("inline", 0), ("processes", how many) or ("ray", how many).

    Raises:
        UsageError: for an unknown name.
    """
    kind, _, number = name.rpartition(":")
    count = int(number) if number.isascii() and number.isdecimal() and len(number) < 6 else 0
    if name == "inline":
        return "inline", 0
    if count and kind in ("", "ray") and name in (number, f"ray:{number}"):
        return kind or "processes", count
    raise UsageError(f"there are no workers {name!r}; {WORKERS_HELP}")


@contextlib.contextmanager
def make_workers(name: str) -> Iterator[Workers | None]:
    """The place for environments that a name stands for (None for this process); closed when the block ends.

    Raises:
        UsageError: for an unknown name.
    """
    kind, count = workers_of(name)
    if kind == "inline":
        yield None
    elif kind == "processes":
        from rollenv.rollout.processes import ProcessWorkers

        with ProcessWorkers(count) as pool:
            yield pool
    else:
        from rollenv.rollout.ray_workers import connected

        with connected(count) as actors:
            yield actors
