"""A sandbox to work in: code in contexts that keep their state, commands, files."""

from __future__ import annotations

import asyncio
import base64
import itertools
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rollenv.core import UsageError
from rollenv.sandbox import backends
from rollenv.sandbox.errors import NotFound, SandboxTimeout
from rollenv.sandbox.types import CommandResult, Entry, Execution, ExecutionError, Limits, Logs, Result
from rollenv.sandbox.worker import Json, OnStream, Worker

OnText = Callable[[str], None]

#: How to run a program in each language; Python runs in the kernel's own interpreter.
LANGUAGES: dict[str, tuple[str, ...]] = {
    "bash": ("bash", "-c"),
    "sh": ("sh", "-c"),
    "javascript": ("node", "-e"),
    "perl": ("perl", "-e"),
    "ruby": ("ruby", "-e"),
}
DEFAULT_CONTEXT = "default"
#: Seconds on top of a run's own time until the sandbox itself is given up.
_GRACE = 10.0


class Sandbox:
    """An isolated place with an interpreter, a shell and a scratch folder. Threads may share one.

    Make one with :meth:`create`, and end it with :meth:`kill` or a ``with`` block.
    """

    def __init__(self, worker: Worker, backend: str, env: Mapping[str, str] | None = None):
        self._worker, self.backend, self._env = worker, backend, dict(env or {})
        self.commands, self.files = Commands(self), Files(self)
        self._open: set[str] = set()
        self._opening = threading.Lock()
        self._numbers = itertools.count(1)

    @classmethod
    def create(
        cls,
        backend: str = "local",
        *,
        limits: Limits | None = None,
        packages: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        env: Mapping[str, str] | None = None,
        require: Sequence[str] = (),
        **settings: Any,
    ) -> Self:
        """Start a sandbox.

        Args:
            backend: ``local`` (namespaces on this machine) or ``docker``.
            limits: of every run.
            packages: modules to import beforehand, so that code finds them loaded.
            files: written before anything runs: path to contents.
            env: environment variables of everything that runs.
            require: properties of :attr:`isolation` that have to hold; by default all that the backend promises.
            settings: of the backend (``image=`` for docker).

        Raises:
            IsolationError: if a property that was asked for does not hold.
        """
        worker = backends.start(backend, limits or Limits(), packages, require=require, **settings)
        sandbox = cls(worker, backend, env)
        try:
            for path, data in (files or {}).items():
                sandbox.files.write(path, data)
        except BaseException:
            worker.close()
            raise
        return sandbox

    @property
    def isolation(self) -> dict[str, bool]:
        """What was proved of this kind of sandbox when it was first started: property to whether it holds."""
        return dict(self._worker.about["isolation"])

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._worker.alive

    def run_code(
        self,
        code: str,
        *,
        language: str = "python",
        context: str | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Execution:
        """Run code and return what came of it; what the code does wrong is in the result, not an exception.

        Args:
            code: a cell of Python, or a program in another language.
            language: ``python``, or one of :data:`LANGUAGES` whose interpreter is in the sandbox.
            context: whose variables it sees and changes (Python); by default the sandbox's own.
            timeout: seconds; by default what the limits say.
            on_stdout, on_stderr: called with text as it comes.
            env: more environment variables, for other languages than Python.

        Raises:
            ContextBusy: if the context runs other code.
            NotFound: if there is no such context or interpreter.
            SandboxDied: if the sandbox has ended.
        """
        seconds = _checked(timeout, self._worker.limits)
        collected, on_stream = _collector(on_stdout, on_stderr)
        if language == "python":
            key = context or DEFAULT_CONTEXT
            if context is None or context == DEFAULT_CONTEXT:
                self._ensure_default()
            fields = self._worker.run_fields(seconds)
            done = self._worker.request(
                "cell", wait=seconds + _GRACE, on_stream=on_stream, key=f"context-{key}", code=code, **fields
            )
            if done.get("ended"):
                self._open.discard(key)
        else:
            if language not in LANGUAGES:
                raise UsageError(f"there is no language {language!r}; there are python, {', '.join(LANGUAGES)}")
            fields = self._worker.run_fields(seconds, {**self._env, **(env or {})})
            command = [*LANGUAGES[language], code]
            done = self._worker.request(
                "command", wait=seconds + _GRACE, on_stream=on_stream, command=command, **fields
            )
        return _execution(done, collected, seconds)

    def create_context(self, name: str | None = None, *, cwd: str | None = None) -> str:
        """A new interpreter with a namespace of its own; its name."""
        name = name or f"context-{next(self._numbers)}"
        fields = self._worker.run_fields(None, self._env) | {"timeout": 0}
        self._worker.request("open", key=f"context-{name}", cwd=cwd, **fields)
        self._open.add(name)
        return name

    def remove_context(self, name: str) -> None:
        """End a context and what it started in its session."""
        self._open.discard(name)
        self._worker.request("signal", key=f"context-{name}", signal=int(signal.SIGKILL))

    def interrupt(self, context: str = DEFAULT_CONTEXT) -> None:
        """Raise KeyboardInterrupt in the code that a context is running."""
        self._worker.request("signal", key=f"context-{context}", signal=int(signal.SIGINT))

    def _ensure_default(self) -> None:
        with self._opening:
            if DEFAULT_CONTEXT not in self._open:
                self.create_context(DEFAULT_CONTEXT)

    def kill(self) -> None:
        """End the sandbox and everything in it; calling it again does nothing."""
        self._worker.close()

    close = kill

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


class CommandHandle:
    """A command in the background."""

    def __init__(self, sandbox: Sandbox, key: str, start: Callable[[], Json], seconds: float):
        self._sandbox, self.key, self._seconds = sandbox, key, seconds
        self._done: Json | None = None
        self._failure: BaseException | None = None
        self.stdout, self.stderr = "", ""
        self._thread = threading.Thread(target=self._follow, args=(start,), name="sandbox-command", daemon=True)
        self._thread.start()

    def _follow(self, start: Callable[[], Json]) -> None:
        try:
            self._done = start()
        except BaseException as error:  # raised again in wait()
            self._failure = error

    def wait(self, timeout: float | None = None) -> CommandResult:
        """Until it ends.

        Raises:
            SandboxTimeout: if it still runs after ``timeout`` seconds. It goes on.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise SandboxTimeout(f"the command still runs after {timeout:g} s")
        if self._failure is not None:
            raise self._failure
        assert self._done is not None
        return _command_result(self._done, self.stdout, self.stderr, self._seconds)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def send_stdin(self, text: str, close: bool = False) -> None:
        """Write to its standard input."""
        self._sandbox._worker.request("stdin", key=self.key, data=text, close=close)

    def kill(self) -> bool:
        """End it and what it started in its session; whether it was still running."""
        try:
            self._sandbox._worker.request("signal", key=self.key, signal=int(signal.SIGKILL))
        except NotFound:
            return False
        return True


class Commands:
    """Programs in a sandbox."""

    def __init__(self, sandbox: Sandbox):
        self._sandbox = sandbox
        self._numbers = itertools.count(1)

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str = "",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> CommandResult:
        """Run a shell command (a text) or a program with arguments, to its end.

        Raises:
            NotFound: if there is no such program.
            SandboxDied: if the sandbox has ended.
        """
        seconds = _checked(timeout, self._sandbox._worker.limits)
        collected, on_stream = _collector(on_stdout, on_stderr)
        fields = self._fields(command, stdin, cwd, env, seconds)
        done = self._sandbox._worker.request("command", wait=seconds + _GRACE, on_stream=on_stream, **fields)
        return _command_result(done, "".join(collected["stdout"]), "".join(collected["stderr"]), seconds)

    def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> CommandHandle:
        """Run a command in the background, with a standard input that stays open."""
        seconds = _checked(timeout, self._sandbox._worker.limits)
        key = f"background-{next(self._numbers)}"
        fields = self._fields(command, "", cwd, env, seconds) | {"key": key, "keep_stdin": True}
        worker = self._sandbox._worker
        number, inbox = worker.start("command", stream=True, background=True, **fields)
        handle: CommandHandle

        def on_stream(name: str, text: str) -> None:
            setattr(handle, name, getattr(handle, name) + text)
            if callback := {"stdout": on_stdout, "stderr": on_stderr}[name]:
                callback(text)

        started = threading.Event()

        def follow() -> Json:
            started.wait()
            return worker.finish(inbox, seconds + _GRACE, on_stream)

        handle = CommandHandle(self._sandbox, key, follow, seconds)
        started.set()
        del number
        return handle

    def _fields(
        self, command: str | Sequence[str], stdin: str, cwd: str | None, env: Mapping[str, str] | None, seconds: float
    ) -> Json:
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not words:
            raise UsageError("the command is empty")
        fields = self._sandbox._worker.run_fields(seconds, {**self._sandbox._env, **(env or {})})
        return fields | {"command": words, "stdin": stdin, "cwd": cwd}


class Files:
    """The files of a sandbox. Relative paths start in the scratch folder; code may write there alone."""

    def __init__(self, sandbox: Sandbox):
        self._sandbox = sandbox

    def _request(self, op: str, path: str, **fields: Any) -> Json:
        where = path if path.startswith("/") else f"{self._sandbox._worker.about['scratch']}/{path}"
        return self._sandbox._worker.request(op, path=where, **fields)

    def read(self, path: str) -> str:
        """A file's text (UTF-8)."""
        return self.read_bytes(path).decode()

    def read_bytes(self, path: str) -> bytes:
        """A file's contents."""
        return base64.b64decode(self._request("read", path)["data"])

    def write(self, path: str, data: str | bytes) -> None:
        """Write a file, and the folders above it."""
        raw = data.encode() if isinstance(data, str) else data
        self._request("write", path, data=base64.b64encode(raw).decode())

    def list(self, path: str = ".") -> list[Entry]:
        """What is in a folder, by name."""
        entries = self._request("list", path)["entries"]
        base = path.rstrip("/")
        return [Entry(path=f"{base}/{entry['name']}", **entry) for entry in entries]

    def exists(self, path: str) -> bool:
        """Whether there is something."""
        return bool(self._request("exists", path)["exists"])

    def make_dir(self, path: str) -> None:
        """Make a folder, and those above it."""
        self._request("make_dir", path)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it."""
        self._request("remove", path)

    def rename(self, path: str, to: str) -> None:
        """Move a file or folder."""
        target = to if to.startswith("/") else f"{self._sandbox._worker.about['scratch']}/{to}"
        self._request("rename", path, to=target)


class AsyncSandbox:
    """:class:`Sandbox` for asyncio: the same methods, awaited. Each runs in a thread."""

    def __init__(self, sandbox: Sandbox):
        self.sync = sandbox
        self.commands, self.files = _Awaited(sandbox.commands), _Awaited(sandbox.files)

    @classmethod
    async def create(cls, *args: Any, **kwargs: Any) -> Self:
        """See :meth:`Sandbox.create`."""
        return cls(await asyncio.to_thread(Sandbox.create, *args, **kwargs))

    async def run_code(self, code: str, **kwargs: Any) -> Execution:
        """See :meth:`Sandbox.run_code`. Cancelling it interrupts the code."""
        task = asyncio.ensure_future(asyncio.to_thread(self.sync.run_code, code, **kwargs))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.to_thread(self.sync.interrupt, kwargs.get("context") or DEFAULT_CONTEXT)
            raise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Awaited(self.sync).__getattr__(name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.sync.kill)


class _Awaited:
    """An object whose methods run in a thread."""

    def __init__(self, inner: Any):
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(value, *args, **kwargs)

        return call


def _checked(timeout: float | None, limits: Limits) -> float:
    seconds = limits.seconds if timeout is None else timeout
    if not seconds > 0:
        raise UsageError(
            f"a timeout is above 0 seconds, got {timeout!r}; leave it out for the limit of {limits.seconds:g}"
        )
    return seconds


def _collector(on_stdout: OnText | None, on_stderr: OnText | None) -> tuple[dict[str, list[str]], OnStream]:
    """Lists that output is gathered in, and the function that gathers it and passes it on."""
    collected: dict[str, list[str]] = {"stdout": [], "stderr": []}
    callbacks = {"stdout": on_stdout, "stderr": on_stderr}

    def on_stream(name: str, text: str) -> None:
        collected[name].append(text)
        if callback := callbacks[name]:
            callback(text)

    return collected, on_stream


def _error(done: Json, seconds: float) -> ExecutionError | None:
    if done["out_of_memory"]:
        return ExecutionError("MemoryLimit", "it used more memory than the limit and was stopped")
    if done["truncated"]:
        return ExecutionError("OutputLimit", "it wrote more output than the limit and was stopped")
    if done["timed_out"]:
        return ExecutionError("Timeout", f"it ran longer than {seconds:g} s and was stopped")
    if done["error"]:
        return ExecutionError(*(str(done["error"].get(k, "")) for k in ("name", "value", "traceback")))
    if done["signal"]:
        return ExecutionError("Killed", f"a signal ended it: {signal.Signals(done['signal']).name}")
    if done.get("ended") and done["exit_code"]:
        return ExecutionError("Exit", f"it exited with {done['exit_code']}")
    return None


def _exit_code(done: Json) -> int | None:
    code: int | None = -done["signal"] if done["signal"] else done["exit_code"]
    return code


def _execution(done: Json, collected: dict[str, list[str]], seconds: float) -> Execution:
    known = Result.__slots__
    results = [Result(**{k: v for k, v in r.items() if k in known}) for r in done["results"] if isinstance(r, dict)]
    logs = Logs(collected["stdout"], collected["stderr"])
    code = _exit_code(done) if done.get("ended") else None
    return Execution(results, logs, _error(done, seconds), code, done["seconds"])


def _command_result(done: Json, stdout: str, stderr: str, seconds: float) -> CommandResult:
    code = _exit_code(done)
    return CommandResult(stdout, stderr, -9 if code is None else code, _error(done, seconds), done["seconds"])
