"""Bytes to and from a process in a sandbox, in pieces, no faster than the reader takes them."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Iterator
from typing import Any

from rollenv.sandbox.errors import NotFound, SandboxDied, SandboxError, SandboxTimeout, operation_error
from rollenv.sandbox.worker import Inbox, Json, Worker

#: Bytes that are on their way at most.
WINDOW = 1 << 20


class Stream:
    """A process and its two directions.

    Args:
        op: the kernel's operation.
        last: whether the process gets no input.
        fields: the operation's arguments.
    """

    def __init__(self, worker: Worker, op: str, *, last: bool, **fields: Any):
        self._worker, self.key = worker, f"stream-{next(worker._numbers)}"
        self.done: Json | None = None
        self._number, self._inbox = worker.start(op, key=self.key, stream=True, window=WINDOW, last=last, **fields)

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
                self._worker._waiting.pop(self._number, None)

    def _next(self, inbox: Inbox, wait: float | None) -> Iterator[tuple[str, bytes]]:
        try:
            message, data = inbox.get(timeout=wait)
        except queue.Empty:
            raise SandboxTimeout(f"nothing came for {wait:g} s") from None
        if "died" in message:
            self.done = {}
            raise SandboxDied("the sandbox ended")
        if "stream" in message:
            yield message["stream"], data
            number, _ = self._worker.start("ack", key=self.key, taken=len(data))
            self._worker._waiting.pop(number, None)  # no one waits for it
        elif "done" in message:
            self.done = message["done"]
            if "failed" in message["done"]:
                raise operation_error(message["done"]["failed"]["errno"], message["done"]["failed"]["message"])

    def send(self, data: bytes, last: bool = False) -> None:
        """Write to standard input; blocks while 1 MiB is unread.

        Args:
            last: whether to close standard input afterwards.
        """
        self._worker.request("stdin", data=data, wait=None, key=self.key, last=last)

    def close(self) -> None:
        """End it; calling it again does nothing."""
        if self.done is None:
            with contextlib.suppress(NotFound, SandboxDied, SandboxError):
                self._worker.request("signal", key=self.key, signal=int(signal.SIGKILL))
            self._inbox.put(({"done": {}}, b""))  # for a reader that is still waiting
        self._worker._waiting.pop(self._number, None)
