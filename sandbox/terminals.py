"""Programs at a terminal, in a sandbox."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rollenv.sandbox.errors import SandboxError, SandboxTimeout
from rollenv.sandbox.inside import protocol
from rollenv.sandbox.streams import Stream

if TYPE_CHECKING:
    from rollenv.sandbox.sandbox import Sandbox

OnData = Callable[[bytes], None]
#: Bytes that are kept of what a terminal showed.
KEPT = 1 << 20


class Terminal:
    """A program at a terminal, in the background."""

    def __init__(self, sandbox: Sandbox, stream: Stream, on_data: OnData | None):
        self._sandbox, self._stream, self._on_data = sandbox, stream, on_data
        self._shown = bytearray()
        self._failure: SandboxError | None = None
        self._thread = threading.Thread(target=self._read, name="sandbox-terminal", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for _, data in self._stream.pieces():
                self._shown += data
                del self._shown[:-KEPT]
                if self._on_data:
                    self._on_data(data)
        except SandboxError as error:
            self._failure = error

    @property
    def pid(self) -> int:
        """The process id, in the sandbox, of the process that relays the terminal's bytes."""
        return int(self._sandbox._worker.ask(protocol.GetPid(self._stream.key))["pid"])

    @property
    def shown(self) -> bytes:
        """The last mebibyte of what it showed, with control sequences."""
        return bytes(self._shown)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def send(self, data: str | bytes) -> None:
        """Send input."""
        self._stream.send(data.encode() if isinstance(data, str) else data)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size; the program gets a signal."""
        self._sandbox._worker.ask(protocol.Resize(self._stream.key, [rows, columns]))

    def kill(self) -> None:
        """End the program; its children receive SIGHUP."""
        self._stream.close()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the program ends; return its exit code as in shells, or None if it was killed by :meth:`kill`.

        Raises:
            SandboxTimeout: if it still runs after ``timeout`` seconds. It keeps running.
            NotFound: if there is no such program.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise SandboxTimeout(f"the terminal's program is still running after {timeout:g} s")
        if self._failure is not None:
            raise self._failure
        done = self._stream.done or protocol.Finished()
        return 128 + done.signal if done.signal else done.exit_code


class Terminals:
    """Starts programs at terminals."""

    def __init__(self, sandbox: Sandbox):
        self._sandbox = sandbox

    def start(
        self,
        command: Sequence[str] = ("/bin/sh", "-i"),
        *,
        rows: int = 24,
        columns: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        on_data: OnData | None = None,
    ) -> Terminal:
        """Run a program in its own terminal.

        Args:
            cwd: where it starts; a relative path starts in the scratch folder.
            env: environment variables on top of the sandbox's own.
            timeout: seconds; by default what the limits say.
            user: who runs it, in a :class:`Machine`.
            on_data: called with what it shows, in a thread.
        """
        sandbox = self._sandbox
        variables = {"TERM": "xterm-256color", **sandbox._env, **(env or {})}
        terms = sandbox._worker.limits_of(sandbox._seconds(timeout), variables)
        terms |= {"memory_bytes": None, "output_bytes": 1 << 50, "size": [rows, columns]} | sandbox._place(cwd, user)
        stream = Stream(sandbox._worker, protocol.Terminal(**terms, command=list(command), last=False))
        return Terminal(sandbox, stream, on_data)
