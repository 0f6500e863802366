"""Shells that keep their state, and what is kept of a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import time
from collections.abc import AsyncIterator

from rollenv.core import UsageError
from rollenv.sandbox import AsyncSandbox
from rollenv.sandbox.errors import NotFound
from rollenv.sandbox.types import Execution

#: Shells of a sandbox, and commands that wait for one.
_SHELLS, _QUEUE = 16, 16

#: Their client makes a session of such a name for one command, or for one in the background that it asks after every
#: few seconds, and never closes it.
PASSING, _QUIET = re.compile(r"bash-\d+"), 30.0


class Failed(Exception):
    """A command failed."""


class Shell:
    """A shell that keeps its state.

    Args:
        context: its name in the sandbox.
        setup: code that it begins with, and begins with again if its process has ended.
        passing: whether nobody will close it.
    """

    def __init__(self, context: str, setup: str, passing: bool):
        self.context, self.setup, self.passing = context, setup, passing
        self.used, self.runs, self._wanted = time.monotonic(), 0, 0
        self._lock = asyncio.Lock()

    @property
    def idle(self) -> float:
        """Seconds since its last command; 0 while there is one."""
        return 0.0 if self._wanted else time.monotonic() - self.used

    @contextlib.asynccontextmanager
    async def turn(self, seconds: float) -> AsyncIterator[None]:
        """Wait until no other command runs in it."""
        if self._wanted > _QUEUE:
            raise UsageError(f"{_QUEUE} commands wait for this session already")
        self._wanted += 1
        try:
            try:
                async with asyncio.timeout(seconds):
                    await self._lock.acquire()
            except TimeoutError:
                raise UsageError(f"the session still runs another command after {seconds:g} s") from None
            try:
                yield
            finally:
                self._lock.release()
        finally:
            self._wanted -= 1
            self.runs += 1
            self.used = time.monotonic()

    async def run(self, sandbox: AsyncSandbox, command: str, seconds: float) -> tuple[Execution, str]:
        """Run a command.

        Args:
            sandbox: that the session is in.
            seconds: after which it is interrupted; the session keeps its state.

        Returns:
            (its end, what it wrote).
        """
        code = f"[[ ${{__began-}} ]] || {{ __began=1; {self.setup}; }}\n{command}"
        done = await sandbox.run_code(code, context=self.context, timeout=seconds)
        return done, "".join(done.logs.stdout + done.logs.stderr).strip()


@dataclasses.dataclass
class Held:
    """A sandbox of this protocol."""

    lease: float | None = None
    """Seconds without a call after which it ends."""
    sessions: dict[str, Shell] = dataclasses.field(default_factory=dict)
    calls: int = 0
    labels: dict[str, str] = dataclasses.field(default_factory=dict)


def shell_of(held: Held, name: str) -> Shell:
    """A shell by its name.

    Raises:
        UsageError: there is none of this name.
    """
    if name not in held.sessions:
        raise UsageError(f"session {name!r:.80} does not exist")
    return held.sessions[name]


async def make_room(sandbox: AsyncSandbox, held: Held) -> None:
    """End a session that nobody will close, where there are many; one that may have started something, last.

    Args:
        held: what is kept of it.

    Raises:
        UsageError: all may still be needed.
    """
    if len(held.sessions) <= _SHELLS:
        return
    passing = [(session.runs != 1, -session.idle, name) for name, session in held.sessions.items() if session.passing]
    ready = sorted(one for one in passing if one[1] < (-_QUIET if one[0] else 0))
    if not ready:
        raise UsageError(f"a sandbox has at most {_SHELLS} sessions; close one")
    await close(sandbox, held, ready[0][2])


async def close(sandbox: AsyncSandbox, held: Held, name: str) -> None:
    """End a shell.

    Args:
        held: what is kept of it.

    Raises:
        UsageError: there is none of this name.
    """
    session = shell_of(held, name)
    del held.sessions[name]
    with contextlib.suppress(NotFound):
        await sandbox.remove_context(session.context)


def exit_code(done: Execution, command: str, output: str) -> int:
    """Of a command in a shell.

    Raises:
        Failed: it has none.
    """
    if done.error is None:
        return 0
    found = re.search(r"(exited with|ended it:) (\d+)", done.error.value) if done.error.name == "Exit" else None
    if found is None:
        raise Failed(
            f"{done.error.value}: command {command!r:.1000}. Here is the end of the output:\n{output[-1000:]!r}"
        )
    return int(found[2]) + (128 if found[1].startswith("ended") else 0)
