"""The messages between a host and the kernel in a sandbox, and their encoding.

On the channel a message is four bytes of length, a JSON object, and as many bytes of data as its ``bytes`` says. A
request is answered by any number of :class:`Output` and :class:`Shown`, and then by one :class:`Finished`,
:class:`Value` or :class:`Failed`. The kernel passes a :class:`Start` or :class:`Cell` on to the process that serves it.

That process reports to the kernel in frames on a pipe, one byte of kind and four of length before each. It may be under
the control of untrusted code, so a reader copies bytes, bounds sizes and counts, and never follows a structure.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

#: Results of one request at most.
_MAX_RESULTS = 10_000
#: The MIME types of representations with short names; every other one has its MIME type's name.
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


# -- requests that start a process -----------------------------------------------------------------------------------


@dataclass(eq=False)
class Start:
    """Start a process with these limits; None is no limit.

    Attributes:
        key: names the process in later requests; by default the kernel chooses a name.
        timeout: seconds; 0 for no limit.
        output_bytes: of standard output and standard error, each.
        stream: whether output is sent as it comes.
        show: whether results are sent as they come.
        window: bytes of output that may be unacknowledged; 0 for any number.
        last: whether standard input ends with the data of this message.
        quiet: whether the sandbox counts as idle while it runs.
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


@dataclass(eq=False)
class Run(Start):
    """Run a Python program in a namespace of its own; ``again`` says that another one is expected."""

    code: str = ""
    again: bool = False


@dataclass(eq=False)
class Command(Start):
    """Run a program."""

    command: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Terminal(Command):
    """Run a program at a terminal of ``size`` (rows, columns)."""

    size: list[int] = field(default_factory=list)


@dataclass(eq=False)
class OpenContext(Start):
    """Start a process that runs cells of a language."""

    language: str = "python"


@dataclass(eq=False)
class FileOperation(Start):
    """Do something to a path with the rights of code; contents are standard input and standard output."""

    path: str = ""


@dataclass(eq=False)
class ReadFile(FileOperation):
    """Read a file of at most ``max_bytes``."""

    max_bytes: int = 0


@dataclass(eq=False)
class WriteFile(FileOperation):
    """Write standard input to a file."""


@dataclass(eq=False)
class WriteFiles(FileOperation):
    """Write several files, ``parts`` being (path, size); their contents come one after another."""

    parts: list[tuple[str, int]] = field(default_factory=list)


@dataclass(eq=False)
class ListFolder(FileOperation):
    """Describe what is in a folder."""


@dataclass(eq=False)
class DescribePath(FileOperation):
    """Describe a path; a link is not followed."""


@dataclass(eq=False)
class WatchFolder(FileOperation):
    """Report changes in a folder."""

    recursive: bool = False


@dataclass(eq=False)
class MakeFolder(FileOperation):
    """Make a folder and its parents."""


@dataclass(eq=False)
class RemovePath(FileOperation):
    """Remove a file, or a folder with everything in it."""


@dataclass(eq=False)
class RenamePath(FileOperation):
    """Rename a path."""

    to: str = ""


@dataclass(eq=False)
class CheckPath(FileOperation):
    """Fail unless a path exists."""


@dataclass(eq=False)
class PackScratch(FileOperation):
    """Write the scratch folder as an archive."""


@dataclass(eq=False)
class UnpackScratch(FileOperation):
    """Read what :class:`PackScratch` wrote."""


@dataclass(eq=False)
class PackMachine(FileOperation):
    """Write everything that was written in a machine as an archive, with the rights of its first process."""


@dataclass(eq=False)
class PackPath(FileOperation):
    """Write a file, or the contents of a folder, as an archive."""

    follow: bool = False


@dataclass(eq=False)
class UnpackInto(FileOperation):
    """Unpack an archive into a folder."""


@dataclass(eq=False)
class Connect(FileOperation):
    """Connect to a server in the sandbox."""

    port: int = 0


# -- requests about what runs ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Cell:
    """Run a cell in the context of a key."""

    key: str
    code: str
    timeout: float = 0.0
    output_bytes: int = 4 << 20
    env: dict[str, str] = field(default_factory=dict)
    stream: bool = False
    show: bool = False
    number: int = 0


@dataclass(eq=False)
class Signal:
    """Send a signal; SIGKILL reaches the whole session, and SIGINT a context only while it runs a cell."""

    key: str
    signal: int


@dataclass(eq=False)
class WriteInput:
    """Append the data to a standard input, and close it if it is the ``last``."""

    key: str
    last: bool = False


@dataclass(eq=False)
class Acknowledge:
    """So many bytes of output were received."""

    key: str
    taken: int


@dataclass(eq=False)
class Resize:
    """Change the size of a terminal."""

    key: str
    size: list[int]


@dataclass(eq=False)
class GetPid:
    """Return the process id inside, as soon as there is one."""

    key: str


@dataclass(eq=False)
class GetMemory:
    """Return the bytes in use."""


@dataclass(eq=False)
class GetMetrics:
    """Return what is in use: bytes, seconds of processors, processes."""


@dataclass(eq=False)
class ListProcesses:
    """Return the contexts and commands that run."""


@dataclass(eq=False)
class Pause:
    """Stop everything; time does not count until :class:`Resume`."""


@dataclass(eq=False)
class Resume:
    """Resume everything."""


@dataclass(eq=False)
class EndAll:
    """Kill everything outside of single runs, and wait until it has ended."""


# -- answers ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Ready:
    """The kernel serves; ``about`` says what this machine gives it."""

    about: Json


@dataclass(eq=False)
class Refused:
    """The sandbox cannot start."""

    reason: str


@dataclass(eq=False)
class Output:
    """Data of ``stdout`` or ``stderr``."""

    stream: str


@dataclass(eq=False)
class Shown:
    """A result: representations by name."""

    result: Json


@dataclass(eq=False)
class Value:
    """The answer to a request that starts nothing."""

    value: Json = field(default_factory=dict)


@dataclass(eq=False)
class Failed:
    """A request could not be served."""

    errno: int
    message: str


@dataclass(eq=False)
class Finished:
    """The end of a process or cell.

    Attributes:
        error: ``name``, ``value`` and ``traceback`` of an exception.
        ended: whether the process has ended; that of a context runs on.
        count: cells that the context has run.
    """

    results: list[Json] = field(default_factory=list)
    error: Json | None = None
    exit_code: int | None = None
    signal: int | None = None
    seconds: float = 0.0
    ended: bool = True
    count: int | None = None
    timed_out: bool = False
    truncated: bool = False
    out_of_memory: bool = False


def _subclasses(base: Any) -> list[Any]:
    return [base, *(kind for each in base.__subclasses__() for kind in _subclasses(each))]


_TYPES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *_subclasses(Start), Cell, Signal, WriteInput, Acknowledge, Resize, GetPid, GetMemory, GetMetrics,
        ListProcesses, Pause, Resume, EndAll, Ready, Refused, Output, Shown, Value, Failed, Finished,
    )
}  # fmt: skip


def from_json(head: Json) -> Any:
    """The message of a JSON object.

    Raises:
        ProtocolError: it is no message.
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
    """The bytes of a message to or about the request of a number."""
    head = json.dumps({"id": number, "bytes": len(data), "type": type(message).__name__, **vars(message)}).encode()
    return len(head).to_bytes(4, "big") + head + data


# -- checks: the kernel is trusted, but what it forwards was written by untrusted code --------------------------------


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
        and all(isinstance(flag, bool) for flag in (done.timed_out, done.truncated, done.out_of_memory, done.ended))
        and all(number is None or _is_number(number) for number in (done.exit_code, done.signal, done.count))
        and isinstance(done.seconds, (int, float))
    )


_CHECKS: dict[Any, Callable[[Any], bool]] = {
    Finished: _is_finished,
    Output: lambda output: output.stream in ("stdout", "stderr"),
    Shown: lambda shown: _is_result(shown.result),
    Value: lambda value: isinstance(value.value, dict),
    Failed: lambda failed: _is_number(failed.errno) and isinstance(failed.message, str),
}


#: The process has its request and begins; or it could not (number of the error, message).
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
