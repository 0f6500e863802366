"""A plugin of pytest's: notes that a session has begun, and that it came to its end. Sessions in sessions do not count.

At its end it kills what was started meanwhile, so that no program under test outlives the tests and changes their
results. A session in which files of the tests were changed does not come to its end.
"""

import contextlib
import os
import signal
from typing import Any

_NOTES = "/run/rollenv/sessions"
_MARK = "ROLLENV_SESSION"
_there: "set[int]" = set()
_tests: "dict[str, bytes]" = {}


def _note(word: str, what: str) -> None:
    with contextlib.suppress(OSError), open(_NOTES, "a") as file:
        file.write(f"{word} {os.getpid()}{what}\n")


def begin(what: str) -> None:
    """Note that something begins."""
    if os.environ.setdefault(_MARK, str(os.getpid())) == str(os.getpid()):
        _note("begin", what)


def end(what: str) -> None:
    """Note that it came to its end."""
    if os.environ.get(_MARK) == str(os.getpid()):
        _note("end", what)


def _running() -> "set[int]":
    """The numbers of processes that run; ended ones are listed until they are waited for."""
    found = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", errors="replace") as file:
            if file.read().rpartition(")")[2].split()[0] not in "ZX":
                found.add(int(name))
    return found


def _sources() -> "dict[str, bytes]":
    """Programs among the tests."""
    found = {}
    for folder, _, names in os.walk("/tests"):
        for path in (os.path.join(folder, name) for name in names if name.endswith((".py", ".sh"))):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                found[path] = file.read(1 << 20)
    return found


def pytest_configure(config: Any) -> None:
    """A session begins; workers of pytest-xdist are not counted."""
    if not hasattr(config, "workerinput"):
        begin("")
        _there.update(_running())
        _tests.update(_sources())


def pytest_unconfigure(config: Any) -> None:
    """It came to its end."""
    if hasattr(config, "workerinput") or os.environ.get(_MARK) != str(os.getpid()):
        return
    for _ in range(100):  # what forks meanwhile is found the next time
        new = _running() - _there
        if not new:
            break
        for number in new:
            with contextlib.suppress(OSError):
                os.kill(number, signal.SIGKILL)
    now = _sources()
    if all(now.get(path, text) == text for path, text in _tests.items()):
        end("")
