"""The report of a process in a sandbox on its work: frames on a pipe, one byte of kind and four of length before each.

The process that writes them may be under the control of untrusted code, so a reader takes nothing for
granted: it copies bytes, bounds sizes and counts, and never follows a structure.
"""

from __future__ import annotations

import os
import re
from typing import Any

from rollenv.sandbox.inside.protocol import Failed

Json = dict[str, Any]

#: The process has its terms and begins; or it could not (number of the error, message).
READY, FAILED = b"O", b"S"
#: A result begins (``main`` or ``display``); one representation of it (name, data); an exception (name, value, trace).
RESULT, FIELD, ERROR = b"R", b"F", b"E"
#: The result before it is whole.
SHOWN = b"W"
#: The cell of that number is done.
DONE = b"D"

#: Bytes and frames of one report at most.
MAX_BYTES, MAX_FRAMES = 16 << 20, 10_000
#: Bytes of an exception's message; agents pass their answers on as one.
MAX_MESSAGE = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_.+/-]{1,100}")


def is_name(name: str) -> bool:
    """Return whether a representation may be called that."""
    return _NAME.fullmatch(name) is not None and name != "is_main_result"


class Violation(Exception):
    """A malformed report."""


def frame(kind: bytes, *parts: str) -> bytes:
    """A frame; parts are separated by null characters, which only the last may hold."""
    data = "\0".join(parts).encode("utf-8", "backslashreplace")
    return kind + len(data).to_bytes(4, "big") + data


class Report:
    """Reads frames, however they are cut."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.clear()

    def clear(self) -> None:
        """Forget what was reported, for the next cell."""
        self.results: list[Json] = []
        self.whole = 0  # so many of them
        self.error: Json | None = None
        self.failed: Failed | None = None
        self.ready = False
        self.done: int | None = None
        self._bytes = self._frames = 0

    @property
    def unread(self) -> bool:
        """Return whether the beginning of a frame is left over."""
        return bool(self._buffer)

    def take(self, data: bytes) -> None:
        """Read what has come.

        Raises:
            Violation: if it is too much, not a frame, or out of order.
        """
        self._buffer += data
        self._bytes += len(data)
        if self._bytes > MAX_BYTES + (1 << 20):
            raise Violation("it is too large")
        at = 0
        while len(self._buffer) >= at + 5:
            size = int.from_bytes(self._buffer[at + 1 : at + 5], "big")
            if size > MAX_BYTES:
                raise Violation("a frame is too large")
            if len(self._buffer) < at + 5 + size:
                break
            self._frame(bytes(self._buffer[at : at + 1]), bytes(self._buffer[at + 5 : at + 5 + size]))
            at += 5 + size
        del self._buffer[:at]

    def _frame(self, kind: bytes, data: bytes) -> None:
        self._frames += 1
        if self.done is not None or self._frames > MAX_FRAMES:
            raise Violation("there are too many frames")
        text = data.decode("utf-8", "backslashreplace")
        if kind == READY:
            self.ready = True
        elif kind == FAILED:
            number, _, message = text.partition("\0")
            self.failed = Failed(_number(number[:6]), message[:1000])
        elif kind == RESULT:
            self.results.append({"is_main_result": text == "main"})
        elif kind == FIELD and self.results:
            name, _, value = text.partition("\0")
            if not is_name(name):
                raise Violation("a representation has an invalid name")
            self.results[-1][name] = value
        elif kind == SHOWN:
            self.whole = len(self.results)
        elif kind == ERROR:
            name, value, trace = [*text.split("\0", 2), "", ""][:3]
            self.error = {"name": name[:200], "value": value[:MAX_MESSAGE], "traceback": trace[:200_000]}
        elif kind == DONE:
            self.done = _number(text)
        else:
            raise Violation("a frame has an unknown kind")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise Violation("a number is none")
    return int(text)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, in as many pieces as it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_message(fd: int) -> bytes:
    """A message with four bytes of length before it; empty at the end."""
    head = _read_exactly(fd, 4)
    return _read_exactly(fd, int.from_bytes(head, "big")) if head else b""


def _read_exactly(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = os.read(fd, min(size - len(data), 1 << 20))
        if not piece:
            return b""
        data += piece
    return bytes(data)
