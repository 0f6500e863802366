"""From a kernel's report on a run to the caller's result."""

from __future__ import annotations

import codecs
import json
import signal
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from rollenv.sandbox.inside.protocol import Finished
from rollenv.sandbox.types import CommandResult, Execution, ExecutionError, Logs, Result

Json = dict[str, Any]
OnText = Callable[[str], None]
OnResult = Callable[[Result], None]
OnError = Callable[[ExecutionError], None]

#: Of a JSON document that a value offered as its representation.
MAX_JSON, MAX_DEPTH, MAX_NODES = 8 << 20, 64, 200_000
#: Representations with their own field.
_NAMES = {field.name for field in fields(Result)} - {"extra"}


class Output:
    """Collects output and forwards it as text, in whole characters."""

    def __init__(
        self, on_stdout: OnText | None = None, on_stderr: OnText | None = None, on_result: OnResult | None = None
    ):
        self.on_result = on_result
        self.pieces: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._callbacks: dict[str, list[OnText]] = {"stdout": [], "stderr": []}
        self.listen(on_stdout, on_stderr)
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder("backslashreplace") for name in self.pieces}

    def listen(self, on_stdout: OnText | None, on_stderr: OnText | None) -> None:
        """Add callbacks for later output.

        Args:
            on_stdout: called with each piece of text from standard output.
            on_stderr: called with each piece of text from standard error.
        """
        for name, callback in (("stdout", on_stdout), ("stderr", on_stderr)):
            if callback is not None:
                self._callbacks[name].append(callback)

    def take(self, name: str, data: bytes, final: bool = False) -> None:
        """Decode the next bytes of a stream.

        Args:
            data: the bytes.
            final: whether the stream ends here.
        """
        if text := self._decoders[name].decode(data, final):
            self.pieces[name].append(text)
            for callback in self._callbacks[name]:
                callback(text)

    def show(self, representations: Json) -> None:
        """Forward a result."""
        if self.on_result:
            self.on_result(result(representations))

    def text(self, name: str) -> str:
        """All of a stream so far."""
        return "".join(self.pieces[name])

    def end(self) -> None:
        """Decode what is left of a character that was cut."""
        for name in self.pieces:
            self.take(name, b"", True)


def died() -> Finished:
    """The report on a run that ended its sandbox."""
    error = {"name": "SandboxDied", "value": "the sandbox ended while this ran in it", "traceback": ""}
    return Finished(error=error, signal=int(signal.SIGKILL))


def no_process(message: str) -> Finished:
    """The report on code for which no process could be started."""
    return Finished(error={"name": "ProcessLimit", "value": message, "traceback": ""}, signal=int(signal.SIGKILL))


def execution(done: Finished, output: Output, seconds: float) -> Execution:
    """Build the result of a cell.

    Args:
        seconds: time limit of the cell.
    """
    output.end()
    results = [result(representations) for representations in done.results]
    logs = Logs(output.pieces["stdout"], output.pieces["stderr"])
    code = exit_code(done) if done.ended else None
    return Execution(results, logs, _error(done, seconds), code, done.seconds, done.count)


def command_result(done: Finished, output: Output, seconds: float) -> CommandResult:
    """Build the result of a command.

    Args:
        seconds: time limit of the command.
    """
    output.end()
    code = 128 + done.signal if done.signal else done.exit_code or 0
    return CommandResult(output.text("stdout"), output.text("stderr"), code, _error(done, seconds), done.seconds)


def exit_code(done: Finished) -> int:
    """The exit code of a process: negative for the signal that ended it."""
    return -done.signal if done.signal else done.exit_code or 0


def result(representations: Json) -> Result:
    """For what a kernel says of one."""
    known = {name: text for name, text in representations.items() if name in _NAMES}
    for name in ("json", "data", "chart"):
        if name in known:
            known[name] = parsed_json(known[name])
    return Result(**known, extra={n: text for n, text in representations.items() if n not in _NAMES})


def _error(done: Finished, seconds: float) -> ExecutionError | None:
    if done.out_of_memory:
        return ExecutionError("MemoryLimit", "it used more memory than the limit and was stopped")
    if done.truncated:
        return ExecutionError("OutputLimit", "it wrote more output than the limit and was stopped")
    if done.timed_out:
        return ExecutionError("Timeout", f"it ran longer than {seconds:g} s and was stopped")
    if done.error:
        return ExecutionError(*(done.error[name] for name in ("name", "value", "traceback")))
    if done.signal:
        return ExecutionError("Killed", f"a signal ended it: {_signal_name(done.signal)}")
    if done.ended and done.exit_code:
        return ExecutionError("Exit", f"it exited with {done.exit_code}")
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time ones have no names
        return f"signal {number}"


def parsed_json(text: str) -> Any:
    """A JSON document written by code, or None if it is invalid, too large, too deep or has too many parts."""
    if len(text) > MAX_JSON or sum(map(text.count, "[{,")) > MAX_NODES:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    level = [document]
    for _ in range(MAX_DEPTH):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return document
    return None


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
