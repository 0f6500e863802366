"""The state of a process that environments share and leave as it is."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def generators() -> list[tuple[Callable[..., Any], ...]]:
    """Return what gets, sets and seeds each random generator of the process: Python's, NumPy's, a loaded torch's."""
    found: list[Any] = [(random.getstate, random.setstate, random.seed)]
    found.append((np.random.get_state, np.random.set_state, np.random.seed))
    if torch := sys.modules.get("torch"):
        restore = lambda state: torch.set_rng_state(torch.ByteTensor(state))  # noqa: E731
        found.append((lambda: torch.get_rng_state().tolist(), restore, torch.manual_seed))
    return found


def surroundings() -> dict[str, str]:
    """The folder, limits, handlers, streams and environment variables of this process."""
    mask = os.umask(0o22)
    os.umask(mask)
    streams = {"sys.stdout": sys.stdout, "sys.stderr": sys.stderr}
    folder = "removed"
    with contextlib.suppress(FileNotFoundError):
        folder = os.getcwd()
    return {
        "the working folder": folder,
        "the umask": oct(mask),
        "the recursion limit": str(sys.getrecursionlimit()),
        "the handler of Ctrl-C": repr(signal.getsignal(signal.SIGINT)),
        **{name: "closed" if getattr(stream, "closed", False) else repr(stream) for name, stream in streams.items()},
        **{f"${name}": value for name, value in os.environ.items()},
    }


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Name what differs between two :func:`surroundings`; variables may be new, and their values may be secrets.

    Lists of folders such as LD_LIBRARY_PATH may get more, as an import of OpenCV does.
    """

    def kept(what: str, was: str, now: str) -> bool:
        return now == was or (what[0] == "$" and what.endswith("PATH") and {*was.split(":")} <= {*now.split(":")})

    return [what for what, was in before.items() if what not in after or not kept(what, was, after[what])]


def resources() -> dict[str, int]:
    """The number of threads, open files and child processes of this process."""
    found = {"threads": threading.active_count()}
    with contextlib.suppress(OSError):  # another system than Linux
        found["open files"] = len(os.listdir("/proc/self/fd"))
        found["child processes"] = len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return found
