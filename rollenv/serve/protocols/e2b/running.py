"""A process that an E2B client started, and the streams that receive its output."""

from __future__ import annotations

import base64
import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollenv.core import RollenvError
from rollenv.sandbox import Sandbox
from rollenv.sandbox.commands import CommandHandle
from rollenv.sandbox.errors import NotFound, SandboxDied, SandboxTimeout
from rollenv.sandbox.terminals import Terminal
from rollenv.sandbox.types import CommandResult
from rollenv.serve.protocols.e2b.streams import Feed


@dataclass
class Running:
    """A process and who hears of it."""

    words: list[str]
    env: dict[str, str]
    cwd: str | None
    tag: str | None
    size: tuple[int, int] | None
    """Rows and columns of its terminal, if it has one."""
    stdin: bool
    seconds: float
    """That it may take."""
    handle: CommandHandle | Terminal | None = None
    pid: int = 0
    feeds: list[Feed] = field(default_factory=list)
    last: dict[str, Any] | Exception | None = None
    """How it ended."""

    def start(self, sandbox: Sandbox) -> None:
        """Start it, in a thread.

        Raises:
            NotFound: there is no such program or folder.
        """
        if self.size is not None:
            rows, columns = self.size
            start: Callable[..., Any] = sandbox.terminals.start
            more: dict[str, Any] = {"rows": rows, "columns": columns, "on_data": lambda data: self._say("pty", data)}
        else:
            start = sandbox.commands.start
            more = {f"on_{name}": self._hear(name) for name in ("stdout", "stderr")}
        self.handle = handle = start(self.words, cwd=self.cwd, env=self.env, timeout=self.seconds, **more)
        with contextlib.suppress(NotFound):  # it has ended
            self.pid = handle.pid
            if isinstance(handle, CommandHandle) and not self.stdin:
                handle.send_stdin(b"", close=True)

    def follow(self, ended: Callable[[], None]) -> None:
        """Wait for its end and tell it, in a thread."""
        begun = time.monotonic()
        try:
            assert self.handle is not None
            self.last = _end(self.handle.wait(), time.monotonic() - begun >= self.seconds)
        except (RollenvError, OSError) as error:
            self.last = error
        ended()
        for feed in list(self.feeds):
            feed.finish(self.last)

    def listen(self, feed: Feed) -> None:
        """Tell a feed from now on."""
        self.feeds.append(feed)
        if self.last is not None:  # it may have ended before the feed was there
            feed.finish(self.last)

    def write(self, data: bytes, close: bool) -> None:
        """Write to its input, in a thread.

        Args:
            close: whether that is the end of it.
        """
        if isinstance(self.handle, Terminal):
            self.handle.send(data)
        elif self.handle is not None:
            self.handle.send_stdin(data, close)

    def kill(self) -> None:
        """End it, in a thread."""
        if self.handle is not None:
            self.handle.kill()

    def _hear(self, name: str) -> Callable[[str], None]:
        return lambda text: self._say(name, text.encode("utf-8", "surrogateescape"))

    def _say(self, name: str, data: bytes) -> None:
        event = {"data": {name: base64.b64encode(data).decode()}}
        for feed in list(self.feeds):
            feed.put(event)

    def config(self) -> dict[str, Any]:
        """Return the command and settings of the process."""
        told: dict[str, Any] = {"cmd": self.words[0], "args": self.words[1:], "envs": self.env}
        return told | ({} if self.cwd is None else {"cwd": self.cwd})


def _end(result: CommandResult | int | None, late: bool) -> dict[str, Any] | Exception:
    """Return how a process ended, in the words of Go's library, which E2B's clients expect."""
    error, code = (result.error, result.exit_code) if isinstance(result, CommandResult) else (None, result)
    if (error is not None and error.name == "Timeout") or (late and code in (None, 137)):
        return SandboxTimeout("the process ran longer than it was given and was ended")
    if error is not None and error.name == "SandboxDied":
        return SandboxDied(error.value)
    if error is not None and error.name not in ("Exit", "Killed"):  # a limit
        return _ended(code or 1, True, error.value)
    if code is None or code > 128:
        number = 9 if code is None else code - 128
        return _ended(-1, False, f"signal: {_name(number)}")
    return _ended(code, True, f"exit status {code}")


def _ended(code: int, exited: bool, status: str) -> dict[str, Any]:
    told = {"exitCode": code, "exited": exited, "status": status}
    return {"end": told | ({"error": status} if code else {})}


def _name(number: int) -> str:
    return (signal.strsignal(number) or f"{number}").lower()
