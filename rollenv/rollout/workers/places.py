"""Workers by name, as in command lines and recipes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rollenv.core import UsageError
from rollenv.remote.address import parse
from rollenv.rollout.workers import Workers

WORKERS_HELP = (
    "Where environments live: inline (this process), a number of worker processes, ray:ACTORS, or servers: "
    "rollenv+ws://HOST:PORT[,HOST:PORT]."
)


def workers_of(name: str) -> tuple[str, int]:
    """("inline", 0), ("processes", how many), ("ray", how many) or ("servers", how many).

    Raises:
        UsageError: for an unknown name.
    """
    kind, _, number = name.rpartition(":")
    count = int(number) if number.isascii() and number.isdecimal() and len(number) < 6 else 0
    if name == "inline":
        return "inline", 0
    if count and kind in ("", "ray") and name in (number, f"ray:{number}"):
        return kind or "processes", count
    if name.startswith(("rollenv+ws://", "rollenv+wss://")):
        return "servers", len(parse(name)[0])
    raise UsageError(f"there are no workers {name!r}; {WORKERS_HELP}")


@contextlib.contextmanager
def make_workers(name: str) -> Iterator[Workers | None]:
    """The workers that a name stands for (None for this process), closed when the block ends.

    Raises:
        UsageError: for an unknown name.
    """
    kind, count = workers_of(name)
    if kind == "inline":
        yield None
    elif kind == "processes":
        from rollenv.rollout.workers.processes import ProcessWorkers

        with ProcessWorkers(count) as pool:
            yield pool
    elif kind == "servers":
        from rollenv.rollout.workers.remote import RemoteWorkers

        yield RemoteWorkers(name)
    else:
        from rollenv.rollout.workers.ray import connected

        with connected(count) as actors:
            yield actors
