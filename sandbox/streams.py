"""Bytes to and from a process in a sandbox, in pieces, no faster than the reader takes them."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Iterator

from rollenv.sandbox.errors import NotFound, SandboxDied, SandboxError, SandboxTimeout, operation_error
from rollenv.sandbox.inside.protocol import Acknowledge, Failed, Finished, Output, Signal, Start
from rollenv.sandbox.worker import Inbox, Worker

#: Bytes that are on their way at most.
WINDOW = 1 << 20


class Stream:
    """A process and its two directions."""

    def __init__(self, worker: Worker, request: Start):
        self._worker, self.key = worker, f"stream-{next(worker._numbers)}"
        self.done: Finished | None = None
        request.key, request.stream, request.window = self.key, True, WINDOW
        self._number, self._inbox = worker.send(request)

    def pieces(self, wait: float | None = None) -> Iterator[tuple[str, bytes]]:
        """(``stdout`` or ``stderr``, bytes) until the process ends.

        Raises:
            SandboxTimeout: after ``wait`` seconds without any.
            SandboxDied: if the sandbox ends.
            SandboxFileError: if the operation fails.
        """
        try:
            while self.done is None:
                yield from self._next(self._inbox, wait)
        finally:
            if self.done is not None:
                self._worker.forget(self._number)

    def _next(self, inbox: Inbox, wait: float | None) -> Iterator[tuple[str, bytes]]:
        try:
            message, data = inbox.get(timeout=wait)
        except queue.Empty:
            raise SandboxTimeout(f"nothing came for {wait:g} s") from None
        if message is None:
            self.done = Finished()
            raise SandboxDied("the sandbox ended")
        if isinstance(message, Output):
            yield message.stream, data
            number, _ = self._worker.send(Acknowledge(self.key, len(data)))
            self._worker.forget(number)
        elif isinstance(message, Failed):
            self.done = Finished()
            raise operation_error(message.errno, message.message)
        elif isinstance(message, Finished):
            self.done = message

    def send(self, data: bytes, last: bool = False) -> None:
        """Write to standard input; blocks while 1 MiB is unread.

        Args:
            last: whether to close standard input afterwards.
        """
        self._worker.write_input(self.key, data, last)

    def close(self) -> None:
        """End it; calling it again does nothing."""
        if self.done is None:
            with contextlib.suppress(NotFound, SandboxDied, SandboxError):
                self._worker.ask(Signal(self.key, int(signal.SIGKILL)))
            self._inbox.put((Finished(), b""))  # for a reader that is still waiting
        self._worker.forget(self._number)
