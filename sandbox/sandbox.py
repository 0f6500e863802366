"""A sandbox to work in: code in contexts that keep their state, commands, files."""

from __future__ import annotations

import contextlib
import errno
import itertools
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rollenv.core import UsageError
from rollenv.sandbox import backends
from rollenv.sandbox.commands import Commands
from rollenv.sandbox.errors import FileThere, NotFound, SandboxDied, SandboxFileError
from rollenv.sandbox.filesystem import Files
from rollenv.sandbox.results import OnText, Output, died, execution, no_room
from rollenv.sandbox.types import Execution, Limits
from rollenv.sandbox.worker import Inbox, Json, Worker

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
#: How often an interpreter that has ended is started anew for one cell.
_REOPENED = 10


class Sandbox:
    """An isolated place with an interpreter, a shell and a scratch folder. Threads may share one.

    Make one with :meth:`create`, and end it with :meth:`kill` or a ``with`` block.
    """

    def __init__(self, worker: Worker, backend: str, env: Mapping[str, str] | None = None):
        self._worker, self.backend, self._env = worker, backend, dict(env or {})
        self.commands, self.files = Commands(self), Files(self)
        self._open: dict[str, str | None] = {}  # contexts that were made, and where they start
        self._killed = False
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
            env: more environment variables while it runs.

        Raises:
            ContextBusy: if the context runs other code.
            NotFound: if there is no such context or interpreter.
            SandboxDied: if the sandbox had ended before.
        """
        seconds, output = self._seconds(timeout), Output(on_stdout, on_stderr)
        if language == "python":
            done = self._run_cell(context or DEFAULT_CONTEXT, code, seconds, output, dict(env or {}))
        elif language in LANGUAGES:
            fields = self._worker.run_fields(seconds, {**self._env, **(env or {})})
            fields |= {"command": [*LANGUAGES[language], code], "memory_bytes": None}
            done = self._run("command", seconds, output, **fields)
        else:
            raise UsageError(f"there is no language {language!r}; there are python, {', '.join(LANGUAGES)}")
        return execution(done, output, seconds)

    def _run_cell(self, name: str, code: str, seconds: float, output: Output, env: dict[str, str]) -> Json:
        fields = self._worker.run_fields(seconds) | {"key": f"context-{name}", "code": code, "env": env}
        if name == DEFAULT_CONTEXT:
            with self._opening:
                if name not in self._open:
                    self.create_context(name)
        for attempt in range(_REOPENED):
            try:
                return self._run("cell", seconds, output, **fields)
            except NotFound:
                if name not in self._open:
                    raise
            time.sleep(0.05 * attempt)  # where memory ran out, what was killed takes a moment to give it back
            with self._opening, contextlib.suppress(FileThere):  # another thread was faster
                self._open_context(name)
        return no_room("its interpreter was ended again and again before it could begin: memory is short")

    def _run(self, op: str, seconds: float, output: Output, **fields: Any) -> Json:
        """A request that runs code. Code that takes the sandbox with it has failed; so has code without room."""
        if not self._worker.alive:
            raise SandboxDied("the sandbox has ended")
        try:
            return self._worker.request(op, wait=seconds + _GRACE, on_bytes=output.take, **fields)
        except SandboxDied:
            return self._died()
        except SandboxFileError as error:
            if error.errno != errno.EAGAIN:
                raise
            return no_room(str(error))

    def _follow(self, number: int, inbox: Inbox, seconds: float, output: Output) -> Json:
        """The same for one that was started before."""
        try:
            return self._worker.finish(inbox, seconds + _GRACE, output.take)
        except SandboxDied:
            return self._died()
        finally:
            self._worker._waiting.pop(number, None)

    def _died(self) -> Json:
        if self._killed:
            raise SandboxDied("the sandbox was ended while this ran in it")
        return died()

    def _seconds(self, timeout: float | None) -> float:
        seconds = self._worker.limits.seconds if timeout is None else timeout
        if not seconds > 0:
            raise UsageError(f"a timeout is above 0 seconds, got {timeout!r}; leave it out for the limit")
        return seconds

    def create_context(self, name: str | None = None, *, cwd: str | None = None) -> str:
        """A new interpreter with a namespace of its own; its name.

        If its process ends (a limit, a crash, memory that another one used), the next code starts it anew, without its
        variables.
        """
        name = name or f"context-{next(self._numbers)}"
        self._open[name] = cwd
        try:
            self._open_context(name)
        except FileThere:
            raise
        except BaseException:
            del self._open[name]
            raise
        return name

    def _open_context(self, name: str) -> None:
        fields = self._worker.run_fields(None, self._env) | {"timeout": 0}
        self._worker.request("open", key=f"context-{name}", cwd=self._open.get(name), **fields)

    def remove_context(self, name: str) -> None:
        """End a context and what it started in its session."""
        self._open.pop(name, None)
        self._worker.request("signal", key=f"context-{name}", signal=int(signal.SIGKILL))

    def interrupt(self, context: str = DEFAULT_CONTEXT) -> None:
        """Raise KeyboardInterrupt in the code that a context is running; without any, nothing happens."""
        with contextlib.suppress(NotFound):
            self._worker.request("signal", key=f"context-{context}", signal=int(signal.SIGINT))

    def kill(self) -> None:
        """End the sandbox and everything in it; calling it again does nothing."""
        self._killed = True
        self._worker.close()

    close = kill

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
