"""A sandbox seen from outside: one process (a jail or a container), and the channel to the kernel in it."""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from rollenv.core import UsageError
from rollenv.sandbox.errors import SandboxDied, SandboxError, operation_error
from rollenv.sandbox.types import Limits
from rollenv.sandbox.wire import ProtocolError, checked_done, is_result

Json = dict[str, Any]
OnBytes = Callable[[str, bytes], None]
OnResult = Callable[[Json], None]
Inbox = queue.SimpleQueue[tuple[Json, bytes]]

#: Seconds for an operation of the kernel itself.
OPERATION = 30.0
#: Bytes of input that go in one message.
PIECE = 1 << 20
#: Characters of code that a run takes.
MAX_CODE = 8 << 20
_MAX_MESSAGE = 256 << 20


class Channel(Protocol):
    """Bytes to and from the kernel."""

    def send(self, data: bytes) -> None:
        """Send all bytes, or raise OSError."""

    def receive(self) -> bytes:
        """Return the bytes received; empty at the end."""

    def close(self) -> None:
        """End it, which ends the sandbox. Then wait until nothing is left of it."""


class Worker:
    """Requests to one kernel, from any thread.

    Args:
        channel: to a kernel that has not spoken yet.
        start_timeout: seconds for the kernel to say that it is ready.

    Raises:
        SandboxError: if it refuses or does not become ready.
    """

    def __init__(self, channel: Channel, limits: Limits, start_timeout: float = 30.0):
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
        first: Json
        try:
            first, _ = self._waiting[0].get(timeout=start_timeout)
        except queue.Empty:
            first = {"refused": f"it was not ready after {start_timeout:g} s"}
        if "ready" not in first:
            self.close()
            raise SandboxError(f"the sandbox did not start: {first.get('refused', 'it ended')}")
        self.about: Json = first["ready"]

    @property
    def alive(self) -> bool:
        return not self.closed and self._reader.is_alive()

    def request(
        self,
        op: str,
        *,
        data: bytes = b"",
        last: bool = True,
        wait: float | None = OPERATION,
        on_bytes: OnBytes | None = None,
        on_result: OnResult | None = None,
        **fields: Any,
    ) -> Json:
        """Ask the kernel for something, and wait until it is done.

        Args:
            op: the kernel's operation.
            data: input that goes with it. More than a piece follows as the process takes it.
            last: whether the input ends there.
            wait: seconds without an answer until the sandbox is ended; None waits forever.
            on_bytes: called with ("stdout" or "stderr", bytes) as output comes.
            on_result: called with representations as results come.
            fields: the operation's arguments.

        Raises:
            SandboxDied: if the sandbox ends or does not answer in time.
            NotFound, ContextBusy, SandboxFileError: if the operation fails inside.
        """
        key = fields.setdefault("key", f"{op}-{next(self._numbers)}") if len(data) > PIECE else ""
        number, inbox = self.start(
            op,
            data[:PIECE],
            stream=on_bytes is not None,
            show=on_result is not None,
            last=last and len(data) <= PIECE,
            **fields,
        )
        try:
            for at in range(PIECE, len(data), PIECE):
                if not self._send_more(key, data[at : at + PIECE], last and at + PIECE >= len(data)):
                    break
            return self.finish(inbox, wait, on_bytes, on_result)
        finally:
            self._waiting.pop(number, None)

    def _send_more(self, key: str, piece: bytes, last: bool) -> bool:
        """Another piece of input; whether the process still takes it. Its own time limit ends the wait."""
        number, inbox = self.start("stdin", piece, key=key, last=last)
        try:
            self.finish(inbox, None, None)
        except SandboxDied:
            raise
        except SandboxError:
            return False
        finally:
            self._waiting.pop(number, None)
        return True

    def start(self, op: str, data: bytes = b"", **fields: Any) -> tuple[int, Inbox]:
        """Send a request; its answers arrive in a queue.

        Args:
            op: operation.
            fields: JSON fields of the operation.

        Returns:
            The number of the request, and the queue of its answers.

        Raises:
            UsageError: the code is too long.
            SandboxDied: the sandbox has ended.
        """
        if len(fields.get("code") or "") > MAX_CODE:
            raise UsageError(f"code can have at most {MAX_CODE} characters; write the rest to a file")
        number: int = next(self._numbers)
        inbox: Inbox = queue.SimpleQueue()
        self._waiting[number] = inbox
        head = json.dumps({"id": number, "op": op, "bytes": len(data), **fields}).encode()
        try:
            with self._send_lock:
                self.channel.send(len(head).to_bytes(4, "big") + head + data)
        except OSError as error:
            self._waiting.pop(number, None)
            raise SandboxDied("the sandbox has ended") from error
        if not self._reader.is_alive():
            inbox.put(({"died": True}, b""))
        return number, inbox

    def finish(
        self, inbox: Inbox, wait: float | None, on_bytes: OnBytes | None, on_result: OnResult | None = None
    ) -> Json:
        """Handle answers until the request is done, and return the last one.

        Args:
            inbox: from :meth:`start`.
            wait: seconds to wait for each answer; None waits without limit.
            on_bytes: called with the name of a stream and its next bytes.

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
            if "died" in message:
                raise SandboxDied("the sandbox ended while the request was running")
            if "stream" in message:
                if on_bytes:
                    on_bytes(message["stream"], data)
            elif "result" in message:
                if on_result:
                    on_result(message["result"])
            elif "done" in message:
                done: Json = message["done"]
                if "failed" in done:
                    raise operation_error(done["failed"]["errno"], done["failed"]["message"])
                return done

    def run_fields(self, timeout: float | None, env: dict[str, str] | None = None) -> Json:
        """The limits of a run, as fields of a request.

        Args:
            timeout: seconds; by default from the limits.
        """
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
        """End the sandbox and everything in it; calling it again does nothing."""
        with self._close_lock:
            if self.closed:
                return
            self.closed = True
        self.channel.close()

    def _read(self) -> None:
        try:
            while True:
                head = self._take(_bounded(int.from_bytes(self._take(4), "big")))
                message = json.loads(head)
                self._deliver(message, self._take(_bounded(message.get("bytes", 0))))
        except Exception:  # a channel that ends, or one that breaks the protocol: the sandbox has ended
            pass
        for inbox in list(self._waiting.values()):
            inbox.put(({"died": True}, b""))

    def _take(self, size: int) -> bytes:
        """Exactly so many bytes of the channel."""
        while len(self._buffer) < size:
            data = self.channel.receive()
            if not data:
                raise EOFError
            self._buffer += data
        taken = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return taken

    def _deliver(self, message: Json, data: bytes) -> None:
        if "done" in message:
            message["done"] = checked_done(message["done"])
        elif "stream" in message and message["stream"] not in ("stdout", "stderr"):
            raise ProtocolError("output of an unknown stream")
        elif "result" in message and not is_result(message["result"]):
            raise ProtocolError("a result is malformed")
        if inbox := self._waiting.get(message["id"]):
            inbox.put((message, data))


def _bounded(size: Any) -> int:
    if not isinstance(size, int) or not 0 <= size <= _MAX_MESSAGE:
        raise ProtocolError("a message has an invalid size")
    return size
