"""The host's side of a sandbox: the channel to the kernel in a jail or container, and streams."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from rollenv.sandbox.errors import (
    InvalidArgument,
    NotFound,
    SandboxDied,
    SandboxError,
    SandboxFileError,
    SandboxTimeout,
    operation_error,
)
from rollenv.sandbox.inside.protocol import (
    Acknowledge,
    Failed,
    Finished,
    OutputPiece,
    ProtocolError,
    Ready,
    RunCell,
    SandboxStartRefused,
    ShownResult,
    Signal,
    Start,
    Value,
    WriteInput,
    encode,
    from_json,
)
from rollenv.sandbox.types import Limits

Json = dict[str, Any]
OnBytes = Callable[[str, bytes], None]
OnResult = Callable[[Json], None]
#: Queue of the answers to a request with their data; None as an answer means that the sandbox has ended.
Inbox = queue.SimpleQueue[tuple[Any, bytes]]

#: Maximum seconds until a kernel is ready.
_START = 30.0
#: Timeout of an operation of the kernel itself, in seconds.
OPERATION = 30.0
#: Maximum bytes of input in one message.
PIECE = 1 << 20
#: Maximum characters of code.
MAX_CODE = 8 << 20
#: Characters that no environment variable can have; other surrogates stand for bytes.
_UNSENDABLE = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
_MAX_MESSAGE = 256 << 20
#: What an error shows of a kernel's standard error.
_LAST_LINES, _LAST_CHARACTERS = 4, 800


class Channel(Protocol):
    """Bytes to and from the kernel."""

    errors: bytes
    """The end of what the kernel wrote to its standard error."""

    def send(self, data: bytes) -> None:
        """Send all bytes, or raise OSError."""

    def receive(self) -> bytes:
        """Return the bytes received; empty at the end."""

    def close(self) -> None:
        """Close the channel, which ends the sandbox, and wait for its end."""


class SandboxWorker:
    """Sends requests to one kernel, from any thread.

    Args:
        channel: channel to a new kernel.

    Raises:
        SandboxError: the kernel refuses or does not become ready.
    """

    def __init__(self, channel: Channel, limits: Limits):
        self.channel, self.limits = channel, limits
        self.env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/user", "LANG": "C.UTF-8"}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Inbox] = {0: queue.SimpleQueue()}
        self._send_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self.closed = self.paused = False
        self.resumed_at = float("-inf")
        self._buffer = bytearray()
        self._reader = threading.Thread(target=self._read, name="sandbox-reader", daemon=True)
        self._reader.start()
        try:
            first, _ = self._waiting[0].get(timeout=_START)
        except queue.Empty:
            first = SandboxStartRefused(f"it was not ready after {_START:g} s")
        if not isinstance(first, Ready):
            self.close()
            reason = first.reason if isinstance(first, SandboxStartRefused) else f"it ended{self._last_words()}"
            raise SandboxError(f"the sandbox did not start: {reason}")
        self.about: Json = first.about

    @property
    def alive(self) -> bool:
        return not self.closed and self._reader.is_alive()

    def ask(self, request: Any, data: bytes = b"", *, wait: float | None = OPERATION) -> Json:
        """Send a request that starts no process, and return the value of the answer.

        Args:
            wait: seconds without an answer after which the sandbox is killed; None for no limit.

        Raises:
            SandboxDied: the sandbox ended or did not answer in time.
            NotFound, SandboxFileError: the operation failed inside.
        """
        number, inbox = self.send(request, data)
        try:
            answer = self.receive(inbox, wait)
            assert isinstance(answer, Value)
            return answer.value
        finally:
            self.forget(number)

    def run(
        self,
        request: Start | RunCell,
        data: bytes = b"",
        *,
        wait: float | None = OPERATION,
        on_bytes: OnBytes | None = None,
        on_result: OnResult | None = None,
    ) -> Finished:
        """Send a request that runs a process or cell, and wait for its end.

        Args:
            data: standard input; data beyond one piece is sent as the process reads it.
            wait: seconds without an answer after which the sandbox is killed; None for no limit.
            on_bytes: called with "stdout" or "stderr" and each piece of output.
            on_result: called with the representations of each result.

        Raises:
            SandboxDied: the sandbox ended or did not answer in time.
            NotFound, ContextBusy, SandboxFileError: the process or cell could not start.
        """
        request.stream, request.show = on_bytes is not None, on_result is not None
        if isinstance(request, Start) and len(data) > PIECE:
            request.key, request.last = request.key or f"input-{next(self._numbers)}", False
        number, inbox = self.send(request, data[:PIECE])
        try:
            with contextlib.suppress(SandboxFileError):  # the process may have closed its input
                if len(data) > PIECE:
                    self.write_input(request.key, data[PIECE:], last=True)
            answer = self.receive(inbox, wait, on_bytes, on_result)
            assert isinstance(answer, Finished)
            return answer
        finally:
            self.forget(number)

    def write_input(self, key: str, data: bytes, last: bool) -> None:
        """Write to a standard input, and close it after the ``last`` piece. Blocks while 1 MiB is unread.

        Raises:
            SandboxFileError: the input is closed.
        """
        for at in range(0, max(len(data), 1), PIECE):
            piece = data[at : at + PIECE]
            self.ask(WriteInput(key, last and at + PIECE >= len(data)), piece, wait=None)

    def send(self, request: Any, data: bytes = b"") -> tuple[int, Inbox]:
        """Send a request.

        Returns:
            The request's number, for :meth:`forget` after the last answer, and the queue of its answers.

        Raises:
            SandboxDied: the sandbox has ended.
        """
        if len(getattr(request, "code", "")) > MAX_CODE:
            raise InvalidArgument(f"code can have at most {MAX_CODE} characters; write the rest to a file")
        for name, value in (getattr(request, "env", None) or {}).items():
            if not isinstance(value, str) or not name or "=" in name or _UNSENDABLE.search(name + value):
                raise InvalidArgument(f"no environment variable can be {name!r} = {value!r:.80}")
        number: int = next(self._numbers)
        inbox: Inbox = queue.SimpleQueue()
        self._waiting[number] = inbox
        try:
            message = encode(number, request, data)
            with self._send_lock:
                self.channel.send(message)
        except OSError as error:
            self.forget(number)
            raise SandboxDied("the sandbox has ended") from error
        if not self._reader.is_alive():
            inbox.put((None, b""))
        return number, inbox

    def forget(self, number: int) -> None:
        """Ignore further answers to a request."""
        self._waiting.pop(number, None)

    def receive(
        self, inbox: Inbox, wait: float | None, on_bytes: OnBytes | None = None, on_result: OnResult | None = None
    ) -> Finished | Value:
        """Handle answers until the request is done, and return the last one.

        Args:
            wait: timeout of each answer in seconds; None for no limit.

        Raises:
            SandboxDied: the sandbox ended, or did not answer in time.
        """
        while True:
            try:
                message, data = inbox.get(timeout=None if wait is None else min(wait, threading.TIMEOUT_MAX))
            except queue.Empty:
                if self.paused or time.monotonic() - self.resumed_at < (wait or 0):
                    continue
                self.close()
                raise SandboxDied(f"the sandbox did not answer within {wait:g} s and was ended") from None
            if message is None:
                raise SandboxDied(f"the sandbox ended while the request was running{self._last_words()}")
            if isinstance(message, OutputPiece):
                if on_bytes:
                    on_bytes(message.stream, data)
            elif isinstance(message, ShownResult):
                if on_result:
                    on_result(message.result)
            elif isinstance(message, Failed):
                raise operation_error(message.errno, message.message)
            else:
                return message  # type: ignore[no-any-return]

    def limits_of(self, timeout: float | None, env: dict[str, str] | None = None) -> Json:
        """Return the limits of a run as fields of :class:`~rollenv.sandbox.inside.protocol.Start`."""
        limits, seconds = self.limits, self.limits.seconds if timeout is None else timeout
        return {
            "timeout": seconds,
            "memory_bytes": limits.memory_mb << 20,
            "output_bytes": limits.output_bytes,
            "file_bytes": limits.disk_mb << 20,
            "processes": limits.processes,
            "open_files": limits.open_files,
            "env": {**self.env, **(env or {})},
        }

    def close(self) -> None:
        """End the sandbox and everything in it; further calls have no effect."""
        with self._close_lock:
            if self.closed:
                return
            self.closed = True
        self.channel.close()

    def _last_words(self) -> str:
        """Return the last lines of the kernel's standard error, after a colon; empty if there are none."""
        lines = self.channel.errors.decode(errors="replace").strip().splitlines()
        return f": {'; '.join(lines[-_LAST_LINES:])}"[:_LAST_CHARACTERS] if lines else ""

    def _read(self) -> None:
        try:
            while True:
                head = json.loads(self._take(_bounded(int.from_bytes(self._take(4), "big"))))
                message, data = from_json(head), self._take(_bounded(head["bytes"]))
                if inbox := self._waiting.get(head["id"]):
                    inbox.put((message, data))
        except Exception:  # the end of the channel or a violation of the protocol: the sandbox has ended
            pass
        for inbox in list(self._waiting.values()):
            inbox.put((None, b""))

    def _take(self, size: int) -> bytes:
        """Read exactly ``size`` bytes from the channel."""
        while len(self._buffer) < size:
            data = self.channel.receive()
            if not data:
                raise EOFError
            self._buffer += data
        taken = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return taken


def _bounded(size: Any) -> int:
    if not isinstance(size, int) or not 0 <= size <= _MAX_MESSAGE:
        raise ProtocolError("a message has an invalid size")
    return size


#: Maximum unacknowledged bytes.
WINDOW = 1 << 20


class RequestStream:
    """A process with its input and output."""

    def __init__(self, worker: SandboxWorker, request: Start):
        self._worker, self.key = worker, f"stream-{next(worker._numbers)}"
        self.done: Finished | None = None
        request.key, request.stream, request.window = self.key, True, WINDOW
        self._number, self._inbox = worker.send(request)

    def pieces(self, wait: float | None = None) -> Iterator[tuple[str, bytes]]:
        """Iterate over ``stdout`` or ``stderr`` and bytes until the process ends.

        Raises:
            SandboxTimeout: there was no output for ``wait`` seconds.
            SandboxDied: the sandbox ended.
            SandboxFileError: the operation failed.
        """
        try:
            while self.done is None:
                try:
                    message, data = self._inbox.get(timeout=wait)
                except queue.Empty:
                    raise SandboxTimeout(f"nothing came for {wait:g} s") from None
                if message is None:
                    self.done = Finished()
                    raise SandboxDied(f"the sandbox ended{self._worker._last_words()}")
                if isinstance(message, OutputPiece):
                    yield message.stream, data
                    number, _ = self._worker.send(Acknowledge(self.key, len(data)))
                    self._worker.forget(number)
                elif isinstance(message, Failed):
                    self.done = Finished()
                    raise operation_error(message.errno, message.message)
                elif isinstance(message, Finished):
                    self.done = message
        finally:
            if self.done is not None:
                self._worker.forget(self._number)

    def send(self, data: bytes, last: bool = False) -> None:
        """Write to standard input, and close it after the ``last`` piece. Blocks while 1 MiB is unread."""
        self._worker.write_input(self.key, data, last)

    def close(self) -> None:
        """End the process; further calls have no effect."""
        if self.done is None:
            with contextlib.suppress(NotFound, SandboxDied, SandboxError):
                self._worker.ask(Signal(self.key, int(signal.SIGKILL)))
            self._inbox.put((Finished(), b""))  # for a reader that is still waiting
        self._worker.forget(self._number)
