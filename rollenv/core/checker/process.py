"""What an environment shares with others in its process, and leaves as it is."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollenv.core.checker.digests import digest


def generators() -> list[str]:
    """Digests of the process-wide random generators: Python's, NumPy's, and torch's if it is loaded."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch and torch.get_rng_state().tolist()
    return [digest(state) for state in states]


def surroundings() -> dict[str, str]:
    """What environments share in a process and leave as it is, with the environment variables."""
    mask = os.umask(0o22)
    os.umask(mask)
    streams = {f"sys.{each}": getattr(sys, each) for each in ("stdout", "stderr")}
    return {
        "the working folder": os.getcwd(),
        "the umask": oct(mask),
        "the recursion limit": str(sys.getrecursionlimit()),
        "the handler of Ctrl-C": repr(signal.getsignal(signal.SIGINT)),
        **{name: "closed" if stream.closed else repr(stream) for name, stream in streams.items()},
        **{f"${name}": value for name, value in os.environ.items()},
    }


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """List what differs between two :func:`surroundings`; variables of its own may be new, and may be secrets."""
    changed = [what for what, was in before.items() if after.get(what) != was]
    return [
        what if what.startswith("$") else f"{what}: {before[what]!r:.200}, then {after.get(what)!r:.200}"
        for what in changed
    ]


def resources() -> dict[str, int]:
    """The number of threads, open files and child processes of this process."""
    fds = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            processes = len(children.read().split())
    except OSError:
        processes = 0
    return {"threads": threading.active_count(), "open files": fds, "child processes": processes}
