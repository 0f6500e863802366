"""Workers by name, for command lines and recipes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rollenv.core.errors import UsageError
from rollenv.remote.address import parse
from rollenv.rollout.workers import Workers

WORKERS_HELP = (
    "Where environments live: inline (this process), a number of worker processes, N@PYTHON for processes of another "
    "Python (its program, a virtual environment, or requirements.txt), ray:ACTORS, or servers: "
    "rollenv+ws://HOST:PORT[,HOST:PORT]."
)


def workers_of(name: str) -> tuple[str, int]:
    """Parse a name to "inline", "processes", "ray" or "servers" and their number."""
    name, at, python = name.partition("@") if name[:1].isdecimal() else (name, "", "")
    kind, _, number = name.rpartition(":")
    count = int(number) if number.isascii() and number.isdecimal() and len(number) < 6 else 0
    if name == "inline":
        return "inline", 0
    if at and not (python and count):
        raise UsageError(f"workers of another Python are N@PYTHON, not {name}{at}{python}. {WORKERS_HELP}")
    if count and kind in ("", "ray") and name in (number, f"ray:{number}"):
        return kind or "processes", count
    if name.startswith(("rollenv+ws://", "rollenv+wss://")):
        return "servers", len(parse(name)[0])
    raise UsageError(f"there are no workers {name!r}. {WORKERS_HELP}")


def other_python(name: str) -> str:
    """Return the checked program of the Python that workers by name run in; empty for this one.

    The ids that only its packages have are known from then on.
    """
    kind, _ = workers_of(name)
    python = name.partition("@")[2] if kind == "processes" else ""
    if not python:
        return ""
    from rollenv.rollout.workers.interpreter import interpreter

    return interpreter(python)


@contextlib.contextmanager
def make_workers(name: str) -> Iterator[Workers | None]:
    """Build workers by name (None for this process) and close them when the block ends."""
    kind, count = workers_of(name)
    with contextlib.ExitStack() as stack:
        if kind == "ray":
            from rollenv.rollout import ray_calls

            stack.enter_context(ray_calls.connected(cpus=count))
        workers = new_workers(name)
        if isinstance(workers, contextlib.AbstractContextManager):
            stack.enter_context(workers)
        yield workers


def new_workers(name: str) -> Workers | None:
    """Build workers by name; for Ray, it must be connected. The caller closes them."""
    kind, count = workers_of(name)
    if kind == "inline":
        return None
    if kind == "processes":
        from rollenv.rollout.workers.processes import ProcessWorkers

        return ProcessWorkers(count, python=other_python(name))
    if kind == "servers":
        from rollenv.rollout.workers.remote import RemoteWorkers

        return RemoteWorkers(name)
    from rollenv.rollout.workers.ray import RayWorkers

    return RayWorkers(count)
