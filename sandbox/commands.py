"""Programs in a sandbox, with or without a terminal."""

from __future__ import annotations

import contextlib
import errno
import itertools
import signal
import threading
from collections.abc import Callable, Mapping, Sequence

from rollenv.sandbox.errors import (
    InvalidArgument,
    NotFound,
    SandboxDied,
    SandboxError,
    SandboxFileError,
    SandboxTimeout,
)
from rollenv.sandbox.inside import protocol
from rollenv.sandbox.inside.protocol import Finished
from rollenv.sandbox.types import CommandResult, OnText, Output, Process, command_result, died, no_process, to_bytes
from rollenv.sandbox.worker import Inbox, Json, RequestStream, SandboxWorker

#: Seconds after a run's timeout until the sandbox counts as failed.
_GRACE = 10.0


class ProgramRunner:
    """A sandbox, as its commands and terminals use it."""

    def __init__(self, worker: SandboxWorker, env: Mapping[str, str] | None):
        self._worker, self._env = worker, dict(env or {})
        self._shell: Sequence[str] = ("/bin/sh", "-c")
        self._killed = False

    def _run(
        self, request: protocol.Start | protocol.RunCell, seconds: float, output: Output, data: bytes = b""
    ) -> Finished:
        """Send a request that runs code. Code that kills its sandbox, or for which there is no process, has failed."""
        if not self._worker.alive:
            raise SandboxDied("the sandbox has ended")
        try:
            results = output.show if output.on_result else None
            return self._worker.run(request, data, wait=seconds + _GRACE, on_bytes=output.take, on_result=results)
        except SandboxDied:
            return self._died()
        except SandboxFileError as error:
            if error.errno != errno.EAGAIN:
                raise
            return no_process(str(error))

    def _follow(self, number: int, inbox: Inbox, seconds: float, output: Output) -> Finished:
        """Receive the end of a request that was already sent; see :meth:`_run`."""
        try:
            done = self._worker.receive(inbox, seconds + _GRACE, output.take)
            assert isinstance(done, Finished)
            return done
        except SandboxDied:
            return self._died()
        finally:
            self._worker.forget(number)

    def _died(self) -> Finished:
        if self._killed:
            raise SandboxDied("the sandbox was ended while this ran in it")
        return died()

    def _seconds(self, timeout: float | None) -> float:
        seconds = self._worker.limits.seconds if timeout is None else timeout
        if not seconds > 0:
            raise InvalidArgument(f"a timeout must be above 0 seconds, got {timeout!r}; leave it out for the limit")
        return seconds

    def _cwd_and_user(self, cwd: str | None, user: str | None) -> Json:
        """Return the working directory and user of a program."""
        if user is not None:
            raise InvalidArgument("programs of a sandbox have one user; a Machine has more (Machine.create)")
        return {"cwd": cwd}


class CommandHandle:
    """A command in the background."""

    def __init__(self, commands: Commands, key: str, follow: Callable[[], Finished], output: Output, seconds: float):
        self._commands, self.key, self._output, self._seconds = commands, key, output, seconds
        self._worker = commands._sandbox._worker
        self._done: Finished | None = None
        self._pid = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(follow,), name="sandbox-command", daemon=True)
        self._thread.start()

    def _run(self, follow: Callable[[], Finished]) -> None:
        try:
            self._done = follow()
        except BaseException as error:  # raised again in wait()
            self._failure = error
        finally:
            self._commands._running.pop(self.key, None)

    @property
    def pid(self) -> int:
        """The process id in the sandbox.

        Raises:
            NotFound: the command has ended.
        """
        if not self._pid:
            self._pid = int(self._worker.ask(protocol.GetPid(self.key))["pid"])
        return self._pid

    @property
    def stdout(self) -> str:
        """The output so far."""
        return self._output.text("stdout")

    @property
    def stderr(self) -> str:
        return self._output.text("stderr")

    def wait(self, timeout: float | None = None) -> CommandResult:
        """Wait until the command ends.

        Raises:
            SandboxTimeout: the command is still running after ``timeout`` seconds; it keeps running.
            NotFound: there is no such program.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise SandboxTimeout(f"the command is still running after {timeout:g} s")
        if self._failure is not None:
            raise self._failure
        assert self._done is not None
        return command_result(self._done, self._output, self._seconds)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def send_stdin(self, text: str | bytes, close: bool = False) -> None:
        """Write to standard input, then optionally ``close`` it. Blocks while 1 MiB is unread."""
        self._worker.write_input(self.key, to_bytes(text), close)

    def kill(self) -> bool:
        """Kill the command and its session's processes; return whether it was still running."""
        return self._commands._end(self.key)


class Commands:
    """Programs in a sandbox."""

    def __init__(self, sandbox: ProgramRunner):
        self._sandbox = sandbox
        self._numbers = itertools.count(1)
        self._running: dict[str, CommandHandle] = {}

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes = "",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        _key: str | None = None,
    ) -> CommandResult:
        """Run a shell command (a text) or a program with arguments, and wait for its end.

        Args:
            command: a text for ``sh -c``, or a program and its arguments.
            cwd: working directory, relative to the scratch folder.
            env: environment variables in addition to the sandbox's.
            timeout: seconds; by default the limit of the sandbox.
            user: user of a :class:`Machine` that runs the command; by default the image's.

        Raises:
            NotFound: there is no such program or folder.
            SandboxDied: the sandbox has ended.
        """
        seconds = self._sandbox._seconds(timeout)
        output = Output(on_stdout, on_stderr)
        data = to_bytes(stdin)
        request = self._request(command, cwd, env, seconds, user, _key or "")
        done = self._sandbox._run(request, seconds, output, data)
        return command_result(done, output, seconds)

    def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        errors: str = "backslashreplace",
    ) -> CommandHandle:
        """Start a command in the background, with an open standard input. See :meth:`run`.

        Args:
            errors: what becomes of bytes of the output that are not UTF-8, as in ``bytes.decode``.
        """
        seconds = self._sandbox._seconds(timeout)
        key, output, sandbox = self._new_key(), Output(on_stdout, on_stderr, errors=errors), self._sandbox
        request = self._request(command, cwd, env, seconds, user, key)
        request.stream, request.last = True, False
        number, inbox = sandbox._worker.send(request)
        handle = CommandHandle(self, key, lambda: sandbox._follow(number, inbox, seconds, output), output, seconds)
        if handle.running:
            self._running[key] = handle
        return handle

    def _new_key(self) -> str:
        return f"background-{next(self._numbers)}"

    def _end(self, key: str) -> bool:
        """Kill the command with a key and its session's processes; return whether it was running."""
        try:
            self._sandbox._worker.ask(protocol.Signal(key, int(signal.SIGKILL)))
        except NotFound:
            return False
        return True

    def list(self) -> list[Process]:
        """List the running contexts and commands, without their child processes."""
        processes = self._sandbox._worker.ask(protocol.ListProcesses())["processes"]
        return [Process(one["pid"], tuple(one["words"]), _context(one["key"]), one["seconds"]) for one in processes]

    def connect(self, pid: int, *, on_stdout: OnText | None = None, on_stderr: OnText | None = None) -> CommandHandle:
        """Attach to a command of :meth:`start`; later output goes to these callbacks as well.

        Raises:
            NotFound: there is no such command.
        """
        for handle in list(self._running.values()):
            with contextlib.suppress(NotFound):
                if handle.pid == pid:
                    handle._output.listen(on_stdout, on_stderr)
                    return handle
        raise NotFound(f"no background command has the number {pid}")

    def kill(self, pid: int) -> bool:
        """Kill a command and its session's processes; return whether it was running."""
        for one in self._sandbox._worker.ask(protocol.ListProcesses())["processes"]:
            if one["pid"] == pid and one["words"]:
                return self._end(one["key"])
        return False

    def send_stdin(self, pid: int, text: str | bytes, close: bool = False) -> None:
        """Write to the standard input of a background command. See :meth:`CommandHandle.send_stdin`."""
        self.connect(pid).send_stdin(text, close)

    def _request(
        self,
        command: str | Sequence[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        seconds: float,
        user: str | None,
        key: str,
    ) -> protocol.Command:
        words = [*self._sandbox._shell, command] if isinstance(command, str) else list(command)
        if not words:
            raise InvalidArgument("the command is empty")
        fields = self._sandbox._worker.limits_of(seconds, {**self._sandbox._env, **(env or {})})
        fields |= {"command": words, "memory_bytes": None, "key": key} | self._sandbox._cwd_and_user(cwd, user)
        return protocol.Command(**fields)


def _context(key: str) -> str | None:
    return key.removeprefix("context-") if key.startswith("context-") else None


OnData = Callable[[bytes], None]
#: Bytes of a terminal's output that are kept.
KEPT = 1 << 20


class Terminal:
    """A program in a terminal, in the background."""

    def __init__(self, sandbox: ProgramRunner, stream: RequestStream, on_data: OnData | None):
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
        """The process id in the sandbox of the process that relays the terminal's bytes."""
        return int(self._sandbox._worker.ask(protocol.GetPid(self._stream.key))["pid"])

    @property
    def shown(self) -> bytes:
        """The last mebibyte of output, with control sequences."""
        return bytes(self._shown)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def send(self, data: str | bytes) -> None:
        """Send input."""
        self._stream.send(to_bytes(data))

    def resize(self, rows: int, columns: int) -> None:
        """Change the size; the program gets SIGWINCH."""
        self._sandbox._worker.ask(protocol.Resize(self._stream.key, [rows, columns]))

    def kill(self) -> None:
        """End the program; its children get SIGHUP."""
        self._stream.close()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the program ends; return its exit code as in shells, or None if it was killed by :meth:`kill`.

        Raises:
            SandboxTimeout: the program is still running after ``timeout`` seconds; it keeps running.
            NotFound: there is no such program.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise SandboxTimeout(f"the terminal's program is still running after {timeout:g} s")
        if self._failure is not None:
            raise self._failure
        done = self._stream.done or protocol.Finished()
        return 128 + done.signal if done.signal else done.exit_code


class Terminals:
    """Programs in terminals."""

    def __init__(self, sandbox: ProgramRunner):
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
        """Start a program in its own terminal.

        Args:
            cwd: working directory, relative to the scratch folder.
            env: environment variables in addition to the sandbox's.
            timeout: seconds; by default the limit of the sandbox.
            user: user of a :class:`Machine` that runs the program.
            on_data: called with the output, in a thread.
        """
        sandbox = self._sandbox
        variables = {"TERM": "xterm-256color", **sandbox._env, **(env or {})}
        fields = sandbox._worker.limits_of(sandbox._seconds(timeout), variables) | sandbox._cwd_and_user(cwd, user)
        fields |= {"memory_bytes": None, "output_bytes": 1 << 50, "size": [rows, columns]}
        stream = RequestStream(sandbox._worker, protocol.StartTerminal(**fields, command=list(command), last=False))
        return Terminal(sandbox, stream, on_data)
