"""A sandbox seen from outside: one process (a jail or a container), and the channel to the kernel in it."""

from __future__ import annotations

import errno
import itertools
import json
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from rollenv.sandbox.errors import ContextBusy, NotFound, SandboxDied, SandboxError, SandboxFileError
from rollenv.sandbox.types import Limits

Json = dict[str, Any]
OnStream = Callable[[str, str], None]

#: Seconds that the kernel gets to answer once a run's own time is over.
ANSWER_GRACE = 5.0
#: Seconds for an operation of the kernel itself.
OPERATION = 30.0
_MAX_MESSAGE = 256 << 20


class Channel(Protocol):
    """Bytes to and from the kernel."""

    def send(self, data: bytes) -> None:
        """Send all of it, or raise OSError."""

    def receive(self) -> bytes:
        """What has come; empty at the end."""

    def close(self) -> None:
        """End it, which ends the sandbox. Then wait until nothing is left of it."""


class Worker:
    """Requests to one kernel, from any thread.

    Args:
        channel: to a kernel that has not spoken yet.
        limits: of every run.
        start_timeout: seconds for the kernel to say that it is ready.

    Raises:
        SandboxError: if it refuses or does not become ready.
    """

    def __init__(self, channel: Channel, limits: Limits, start_timeout: float = 30.0):
        self.channel, self.limits = channel, limits
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Json]] = {0: queue.SimpleQueue()}
        self._send_lock = threading.Lock()
        self._closed = False
        self.runs = 0
        self._reader = threading.Thread(target=self._read, name="sandbox-reader", daemon=True)
        self._reader.start()
        try:
            first = self._waiting[0].get(timeout=start_timeout)
        except queue.Empty:
            first = {"refused": f"it was not ready after {start_timeout:g} s"}
        if "ready" not in first:
            self.close()
            raise SandboxError(f"the sandbox did not start: {first.get('refused', 'it ended')}")
        self.about: Json = first["ready"]

    @property
    def alive(self) -> bool:
        return not self._closed and self._reader.is_alive()

    def request(
        self, op: str, *, wait: float | None = OPERATION, on_stream: OnStream | None = None, **fields: Any
    ) -> Json:
        """Ask the kernel for something, and wait until it is done.

        Args:
            op: the kernel's operation.
            wait: seconds until it is given up, and the sandbox with it; None waits for ever.
            on_stream: called with ("stdout" or "stderr", text) as output comes.
            fields: the operation's arguments.

        Raises:
            SandboxDied: if the sandbox ends or does not answer in time.
            NotFound, ContextBusy, SandboxFileError: if the operation fails inside.
        """
        number, inbox = self.start(op, stream=on_stream is not None, **fields)
        try:
            return self.finish(inbox, wait, on_stream)
        finally:
            self._waiting.pop(number, None)

    def start(self, op: str, **fields: Any) -> tuple[int, queue.SimpleQueue[Json]]:
        """Send a request; its answers will be in the queue."""
        number, inbox = next(self._numbers), queue.SimpleQueue[Json]()
        self._waiting[number] = inbox
        data = json.dumps({"id": number, "op": op, **fields}).encode()
        try:
            with self._send_lock:
                self.channel.send(len(data).to_bytes(4, "big") + data)
        except OSError as error:
            self._waiting.pop(number, None)
            raise SandboxDied("the sandbox has ended") from error
        if not self._reader.is_alive():
            inbox.put({"died": True})
        return number, inbox

    def finish(self, inbox: queue.SimpleQueue[Json], wait: float | None, on_stream: OnStream | None) -> Json:
        """Take answers until the request is done."""
        while True:
            try:
                message = inbox.get(timeout=wait)
            except queue.Empty:
                self.close()
                raise SandboxDied(f"the sandbox did not answer within {wait:g} s and was ended") from None
            if "died" in message:
                raise SandboxDied("the sandbox ended while the request was running")
            if "stream" in message:
                if on_stream:
                    on_stream(message["stream"], message["data"])
            elif "done" in message:
                done: Json = message["done"]
                if "failed" in done:
                    raise _operation_error(done)
                return done

    def run_fields(self, timeout: float | None, env: dict[str, str] | None = None) -> Json:
        """The limits of a run, as the kernel wants them."""
        limits, seconds = self.limits, self.limits.seconds if timeout is None else timeout
        return {
            "timeout": seconds,
            "memory_bytes": limits.memory_mb << 20,
            "output_bytes": limits.output_bytes,
            "file_bytes": limits.disk_mb << 20,
            "processes": limits.processes,
            "open_files": limits.open_files,
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/user", "LANG": "C.UTF-8", **(env or {})},
        }

    def close(self) -> None:
        """End the sandbox and everything in it; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self.channel.close()

    def _read(self) -> None:
        buffer = bytearray()
        try:
            while data := self.channel.receive():
                buffer += data
                while len(buffer) >= 4 and len(buffer) >= (size := 4 + int.from_bytes(buffer[:4], "big")):
                    message = json.loads(buffer[4:size])
                    del buffer[:size]
                    if inbox := self._waiting.get(message["id"]):
                        inbox.put(message)
                if len(buffer) >= 4 and int.from_bytes(buffer[:4], "big") > _MAX_MESSAGE:
                    break
        except (OSError, ValueError, KeyError, TypeError):
            pass  # a channel that ends, or one that does not speak the protocol: the sandbox is over
        for inbox in list(self._waiting.values()):
            inbox.put({"died": True})


def _operation_error(done: Json) -> SandboxError:
    message = done["message"]
    if done["errno"] in (errno.ENOENT, errno.ESRCH):
        return NotFound(message)
    if done["errno"] == errno.EBUSY:
        return ContextBusy(message)
    return SandboxFileError(f"{done['failed']}: {message}")
