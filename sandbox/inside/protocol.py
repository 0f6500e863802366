"""The messages between a host and the kernel in a sandbox, and their encoding.

A message on the channel is four bytes of length, a JSON object, and ``bytes`` bytes of data. The answer to a request is
any number of :class:`OutputPiece` and :class:`ShownResult`, followed by a :class:`Finished`, :class:`Value` or
:class:`Failed`. The kernel forwards a :class:`Start` or :class:`RunCell` to the process that serves it.

That process reports to the kernel in frames on a pipe, each with a byte of kind and four of length. Untrusted code may
control it, so the kernel only copies bytes and bounds their sizes and number.
"""

from __future__ import annotations

import enum
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_: bool) -> Callable[[type], type]:
        """Mark nothing: images may have a Python before 3.11."""
        return lambda kind: kind


Json = dict[str, Any]

#: Maximum results of one request.
_MAX_RESULTS = 10_000
#: MIME types of representations with short names; others are named by their MIME type.
MIME = {
    "text": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
    "latex": "text/latex",
    "json": "application/json",
    "javascript": "application/javascript",
}


class ProtocolError(ValueError):
    """A message that a correct kernel never sends."""


_TYPES: dict[str, Any] = {}


@dataclass_transform(eq_default=False)
class SandboxMessage:
    """The base of all messages: dataclasses that are told apart by their names."""

    def __init_subclass__(cls) -> None:
        _TYPES[cls.__name__] = dataclass(eq=False)(cls)


# -- requests that start a process -----------------------------------------------------------------------------------


class Start(SandboxMessage):
    """Start a process with limits; None is no limit.

    Attributes:
        key: name of the process in later requests; by default chosen by the kernel.
        timeout: seconds; 0 for no limit.
        output_bytes: maximum bytes of standard output and of standard error.
        stream: send output as it arrives.
        show: send results as they arrive.
        window: maximum unacknowledged bytes of output; 0 for no limit.
        last: standard input ends with the data of this message.
        quiet: the sandbox counts as idle while the process runs.
    """

    key: str = ""
    timeout: float = 0.0
    memory_bytes: int | None = None
    output_bytes: int = 4 << 20
    file_bytes: int | None = None
    processes: int | None = None
    open_files: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    stream: bool = False
    show: bool = False
    window: int = 0
    last: bool = True
    quiet: bool = False


class RunProgram(Start):
    """Run a Python program in a namespace of its own; ``again``: prepare a namespace for the next run."""

    code: str = ""
    again: bool = False


class Command(Start):
    """Run a program."""

    command: list[str] = field(default_factory=list)


class StartTerminal(Command):
    """Run a program in a terminal of ``size`` (rows, columns)."""

    size: list[int] = field(default_factory=list)


class OpenContext(Start):
    """Start a process that runs cells of a language."""

    language: str = "python"


class FileOperation(Start):
    """Carry out an operation on a path with code's permissions; contents are standard input and standard output."""

    path: str = ""


class ReadFile(FileOperation):
    """Read a file of at most ``max_bytes``."""

    max_bytes: int = 0


class WriteFile(FileOperation):
    """Write standard input to a file."""


class WriteFiles(FileOperation):
    """Write several files with path and size in ``parts`` and concatenated contents."""

    parts: list[tuple[str, int]] = field(default_factory=list)


class ListFolder(FileOperation):
    """Describe the contents of a folder."""


class DescribePath(FileOperation):
    """Describe a path; a link is not followed."""


class WatchFolder(FileOperation):
    """Report changes in a folder."""

    recursive: bool = False


class MakeFolder(FileOperation):
    """Create a folder and its parents."""


class RemovePath(FileOperation):
    """Remove a file, or a folder with everything in it."""


class RenamePath(FileOperation):
    """Rename a path."""

    to: str = ""


class CheckPath(FileOperation):
    """Fail unless a path exists."""


class PackScratch(FileOperation):
    """Archive the scratch folder."""


class UnpackScratch(FileOperation):
    """Unpack an archive of :class:`PackScratch`."""


class PackMachine(FileOperation):
    """Archive all written files of a machine, with the permissions of its first process."""


class PackPath(FileOperation):
    """Archive a file, or the contents of a folder."""

    follow: bool = False


class UnpackInto(FileOperation):
    """Unpack an archive into a folder."""


class Connect(FileOperation):
    """Connect to a server in the sandbox, at an address of its loopback."""

    port: int = 0
    host: str = "127.0.0.1"


# -- requests about running processes --------------------------------------------------------------------------------


class RunCell(SandboxMessage):
    """Run a cell in the context with a key."""

    key: str
    code: str
    timeout: float = 0.0
    output_bytes: int = 4 << 20
    env: dict[str, str] = field(default_factory=dict)
    stream: bool = False
    show: bool = False
    number: int = 0


class Signal(SandboxMessage):
    """Send a signal; SIGKILL reaches the whole session, and SIGINT a context only while it runs a cell."""

    key: str
    signal: int


class WriteInput(SandboxMessage):
    """Append the data to a standard input, and close it after the ``last`` piece."""

    key: str
    last: bool = False


class Acknowledge(SandboxMessage):
    """Acknowledge received bytes of output."""

    key: str
    taken: int


class Resize(SandboxMessage):
    """Change the size of a terminal."""

    key: str
    size: list[int]


class GetPid(SandboxMessage):
    """Return the process id inside, once it is known."""

    key: str


class GetMemory(SandboxMessage):
    """Return the bytes in use."""


class GetMetrics(SandboxMessage):
    """Return the use of memory, disk, processor time and processes."""


class ListProcesses(SandboxMessage):
    """Return the running contexts and commands."""


class Pause(SandboxMessage):
    """Stop all processes; time does not count until :class:`Resume`."""


class Resume(SandboxMessage):
    """Resume all processes."""


class EndAll(SandboxMessage):
    """Kill all processes except those of single runs, and wait for their end."""


# -- answers ---------------------------------------------------------------------------------------------------------


class Ready(SandboxMessage):
    """The kernel is ready; ``about`` has the properties of this sandbox."""

    about: Json


class SandboxStartRefused(SandboxMessage):
    """The sandbox cannot start."""

    reason: str


class OutputPiece(SandboxMessage):
    """Data of ``stdout`` or ``stderr``."""

    stream: str


class ShownResult(SandboxMessage):
    """A result, as representations by name."""

    result: Json


class Value(SandboxMessage):
    """The answer to a request that starts no process."""

    value: Json = field(default_factory=dict)


class Failed(SandboxMessage):
    """A request could not be served."""

    errno: int
    message: str


class Finished(SandboxMessage):
    """The end of a process or cell.

    Attributes:
        error: ``name``, ``value`` and ``traceback`` of an exception.
        process_ended: that of a context continues.
        count: number of cells that the context has run.
    """

    results: list[Json] = field(default_factory=list)
    error: Json | None = None
    exit_code: int | None = None
    signal: int | None = None
    seconds: float = 0.0
    process_ended: bool = True
    count: int | None = None
    timed_out: bool = False
    truncated: bool = False
    out_of_memory: bool = False


def from_json(head: Json) -> Any:
    """Convert a JSON object to a message.

    Raises:
        ProtocolError: the object is not a valid message.
    """
    fields = {name: value for name, value in head.items() if name not in ("id", "bytes", "type")}
    try:
        message = _TYPES[head["type"]](**fields)
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"a message is malformed: {error}") from None
    check = _CHECKS.get(type(message))
    if check is not None and not check(message):
        raise ProtocolError("a message is malformed")
    return message


def encode(number: int, message: Any, data: bytes = b"") -> bytes:
    """Encode a message for the request with a number."""
    head = json.dumps({"id": number, "bytes": len(data), "type": type(message).__name__, **vars(message)}).encode()
    return len(head).to_bytes(4, "big") + head + data


# -- checks: the kernel is trusted, but it forwards data of untrusted code --------------------------------------------


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _is_result(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(v, bool) if k == "is_main_result" else isinstance(v, str) for k, v in value.items()
    )


def _is_finished(done: Finished) -> bool:
    error, results = done.error, done.results
    return (
        isinstance(results, list)
        and len(results) <= _MAX_RESULTS
        and all(map(_is_result, results))
        and (
            error is None
            or (isinstance(error, dict) and all(isinstance(error.get(k), str) for k in ("name", "value", "traceback")))
        )
        and all(
            isinstance(flag, bool) for flag in (done.timed_out, done.truncated, done.out_of_memory, done.process_ended)
        )
        and all(number is None or _is_number(number) for number in (done.exit_code, done.signal, done.count))
        and isinstance(done.seconds, (int, float))
    )


_CHECKS: dict[Any, Callable[[Any], bool]] = {
    Finished: _is_finished,
    OutputPiece: lambda output: output.stream in ("stdout", "stderr"),
    ShownResult: lambda shown: _is_result(shown.result),
    Value: lambda value: isinstance(value.value, dict),
    Failed: lambda failed: _is_number(failed.errno) and isinstance(failed.message, str),
}


class FrameKind(enum.IntEnum):
    """Kinds of frames; each comment names the parts of the data."""

    READY = 1  # the process starts its request
    FAILED = 2  # it failed before: error number, message
    RESULT_BEGIN = 3  # "main" or "display"
    FIELD = 4  # a representation of the result: name, data
    RESULT_END = 5
    ERROR = 6  # an exception: name, value, traceback
    DONE = 7  # the end of a cell: its number


#: Maximum bytes and frames of one report; the interpreter stops at nine tenths of it.
MAX_BYTES, MAX_FRAMES = 16 << 20, 10_000
#: Maximum bytes of an exception's message, which agents use for answers.
MAX_ERROR_TEXT = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_.+/-]{1,100}")


def is_name(name: str) -> bool:
    """Return whether a name of a representation is valid."""
    return _NAME.fullmatch(name) is not None and name != "is_main_result"


class Violation(Exception):
    """A malformed report."""


def frame(kind: FrameKind, *parts: str) -> bytes:
    """Encode a frame. Null characters separate parts; only the last part may contain them."""
    data = "\0".join(parts).encode("utf-8", "backslashreplace")
    return bytes([kind]) + len(data).to_bytes(4, "big") + data


class Report:
    """Reads frames from a byte stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.clear()

    def clear(self) -> None:
        """Reset for the next cell."""
        self.results: list[Json] = []
        self.whole = 0  # number of complete results
        self.error: Json | None = None
        self.failed: Failed | None = None
        self.ready = False
        self.done: int | None = None
        self._bytes = self._frames = 0

    @property
    def unread(self) -> bool:
        """True if there is an incomplete frame."""
        return bool(self._buffer)

    def take(self, data: bytes) -> None:
        """Read the next bytes.

        Raises:
            Violation: the report is too large, malformed or out of order.
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
            self._frame(self._buffer[at], bytes(self._buffer[at + 5 : at + 5 + size]))
            at += 5 + size
        del self._buffer[:at]

    def _frame(self, kind: int, data: bytes) -> None:
        self._frames += 1
        if self.done is not None or self._frames > MAX_FRAMES:
            raise Violation("there are too many frames")
        text = data.decode("utf-8", "backslashreplace")
        if kind == FrameKind.READY:
            self.ready = True
        elif kind == FrameKind.FAILED:
            number, _, message = text.partition("\0")
            self.failed = Failed(_number(number[:6]), message[:1000])
        elif kind == FrameKind.RESULT_BEGIN:
            self.results.append({"is_main_result": text == "main"})
        elif kind == FrameKind.FIELD and self.results:
            name, _, value = text.partition("\0")
            if not is_name(name):
                raise Violation("a representation has an invalid name")
            self.results[-1][name] = value
        elif kind == FrameKind.RESULT_END:
            self.whole = len(self.results)
        elif kind == FrameKind.ERROR:
            name, value, trace = [*text.split("\0", 2), "", ""][:3]
            self.error = {"name": name[:200], "value": value[:MAX_ERROR_TEXT], "traceback": trace[:200_000]}
        elif kind == FrameKind.DONE:
            self.done = _number(text)
        else:
            raise Violation("a frame has an unknown kind")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise Violation("a number is none")
    return int(text)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes, in several calls if necessary."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_message(fd: int) -> bytes:
    """Read a message with four bytes of length before it; empty at the end."""
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
