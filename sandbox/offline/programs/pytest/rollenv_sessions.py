"""A pytest plugin that notes the start and the regular end of a session, but not of nested sessions.

At the end it kills all processes started meanwhile, so that no program under test outlives the tests and changes their
results. A session in which test files were changed gets no end.
"""

import contextlib
import os
import signal
from typing import Any

_NOTES = "/run/rollenv/sessions"
_MARK = "ROLLENV_SESSION"
_before: "set[int]" = set()
_tests: "dict[str, bytes]" = {}


def _note(word: str, what: str) -> None:
    with contextlib.suppress(OSError), open(_NOTES, "a") as file:
        file.write(f"{word} {os.getpid()}{what}\n")


def begin(what: str) -> None:
    """Note a start."""
    if os.environ.setdefault(_MARK, str(os.getpid())) == str(os.getpid()):
        _note("begin", what)


def end(what: str) -> None:
    """Note a regular end."""
    if os.environ.get(_MARK) == str(os.getpid()):
        _note("end", what)


def _running() -> "set[int]":
    """Return the ids of running processes, without zombies."""
    running = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", errors="replace") as file:
            if file.read().rpartition(")")[2].split()[0] not in "ZX":
                running.add(int(name))
    return running


def _sources() -> "dict[str, bytes]":
    """Return the contents of Python and shell files of the tests."""
    sources = {}
    for folder, _, names in os.walk("/tests"):
        for path in (os.path.join(folder, name) for name in names if name.endswith((".py", ".sh"))):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                sources[path] = file.read(1 << 20)
    return sources


def pytest_configure(config: Any) -> None:
    """Note the start of a session, unless this is a worker of pytest-xdist."""
    if not hasattr(config, "workerinput"):
        begin("")
        _before.update(_running())
        _tests.update(_sources())


def pytest_unconfigure(config: Any) -> None:
    """Kill remaining processes and note the end of the session."""
    if hasattr(config, "workerinput") or os.environ.get(_MARK) != str(os.getpid()):
        return
    for _ in range(100):  # the next iteration finds processes that forked meanwhile
        new = _running() - _before
        if not new:
            break
        for number in new:
            with contextlib.suppress(OSError):
                os.kill(number, signal.SIGKILL)
    now = _sources()
    if all(now.get(path, text) == text for path, text in _tests.items()):
        end("")
