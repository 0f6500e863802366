"""Sandboxes with stateful contexts for code, commands and files; also for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self, TypeVar

from rollenv.sandbox import backends
from rollenv.sandbox.commands import CommandHandle, Commands, ProgramRunner, Terminal, Terminals
from rollenv.sandbox.errors import FileThere, InvalidArgument, NotFound, SandboxDied
from rollenv.sandbox.filesystem import Files, WatchHandle
from rollenv.sandbox.inside import protocol
from rollenv.sandbox.inside.protocol import Finished
from rollenv.sandbox.network import Forward, Ports
from rollenv.sandbox.types import (
    CommandResult,
    Context,
    Execution,
    Limits,
    Metrics,
    OnError,
    OnResult,
    OnText,
    Output,
    execution,
    no_process,
)
from rollenv.sandbox.worker import SandboxWorker

#: The default context for Python; other languages have their own.
DEFAULT = "default"
#: Languages with cells that keep state.
STATEFUL = ("python", "bash", "javascript")
#: Languages of stateless programs.
LANGUAGES: dict[str, tuple[str, ...]] = {"sh": ("sh", "-c"), "perl": ("perl", "-e"), "ruby": ("ruby", "-e")}
#: Maximum restarts of an interpreter for one cell.
_REOPENED = 10


def default_name(language: str) -> str:
    """Return the name of a language's default context."""
    return DEFAULT if language == "python" else f"{DEFAULT}-{language}"


class BaseSandbox(ProgramRunner):
    """Files, programs, terminals and ports of a :class:`Sandbox` or :class:`~rollenv.sandbox.machine.Machine`."""

    def __init__(self, worker: SandboxWorker, backend: str, env: Mapping[str, str] | None = None):
        super().__init__(worker, env)
        self.backend, self.files = backend, Files(worker)
        self.commands, self.terminals, self.ports = Commands(self), Terminals(self), Ports(self.files)
        self._timer: threading.Timer | None = None
        self._timer_lock = threading.Lock()
        self._ends: float | None = None  # on the monotonic clock
        self._measured = (time.monotonic(), 0.0)

    @property
    def isolation(self) -> dict[str, bool]:
        """The verified isolation properties of this kind of sandbox, and whether each holds."""
        return dict(self._worker.about["isolation"])

    @property
    def alive(self) -> bool:
        """True while the sandbox runs."""
        return self._worker.alive

    def set_timeout(self, seconds: float | None) -> None:
        """End the sandbox after so many seconds, even if code is running; None for never."""
        if seconds is not None and not seconds > 0:
            raise InvalidArgument(f"a sandbox's lifetime must be above 0 seconds, got {seconds!r}; kill() ends it now")
        self._set_timer(seconds)

    def _set_timer(self, seconds: float | None) -> None:
        with self._timer_lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._ends = None
            if seconds is not None:
                self._ends = time.monotonic() + seconds
                self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self.kill)
                self._timer.daemon = True
                self._timer.start()

    @property
    def expires_at(self) -> float | None:
        """The end of its lifetime in seconds since 1970; None for never."""
        return None if self._ends is None else time.time() + self._ends - time.monotonic()

    def metrics(self) -> Metrics:
        """Return the current use of resources."""
        used, limits, now = self._worker.ask(protocol.GetMetrics()), self._worker.limits, time.monotonic()
        before, self._measured = self._measured, (now, float(used["cpu_seconds"]))
        spent = max(0.0, self._measured[1] - before[1])  # ended processes no longer count
        return Metrics(
            cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            cpu_seconds=self._measured[1],
            cpu_percent=100 * spent / max(now - before[0], 1e-6),
            memory_used=int(used["memory_used"]),
            memory_total=limits.memory_mb << 20,
            disk_used=int(used["disk_used"]),
            disk_total=limits.disk_mb << 20,
            processes=int(used["processes"]),
            timestamp=time.time(),
        )

    def pause(self) -> None:
        """Stop all processes; they stay in memory. Only the sandbox's lifetime continues to count.

        Until :meth:`resume`, methods that run code or access files raise :class:`SandboxPaused`.
        """
        self._worker.paused = True  # requests need not be answered in time
        self._worker.ask(protocol.Pause())

    def resume(self) -> None:
        """Resume all processes; without a pause this has no effect."""
        self._worker.ask(protocol.Resume())
        self._worker.resumed_at, self._worker.paused = time.monotonic(), False

    def kill(self) -> None:
        """End the sandbox and everything in it; further calls have no effect."""
        self._killed = True
        self._set_timer(None)
        self.ports.close()
        self._worker.close()

    close = kill

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


class Sandbox(BaseSandbox):
    """An isolated environment with an interpreter, a shell and a scratch folder. Threads may share one.

    Create one with :meth:`create`, and end it with :meth:`kill` or a ``with`` block.
    """

    def __init__(self, worker: SandboxWorker, backend: str, env: Mapping[str, str] | None = None):
        super().__init__(worker, backend, env)
        self._contexts: dict[str, Context] = {}
        self._contexts_lock = threading.Lock()
        self._numbers = itertools.count(1)

    @classmethod
    def create(
        cls,
        backend: str = "local",
        *,
        limits: Limits | None = None,
        packages: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        snapshot: bytes | None = None,
        env: Mapping[str, str] | None = None,
        require: Sequence[str] = (),
        timeout: float | None = None,
        **settings: Any,
    ) -> Self:
        """Start a sandbox.

        Args:
            backend: ``local`` (namespaces on this machine) or ``docker``.
            packages: modules to import before code runs.
            snapshot: files of another sandbox; see :meth:`snapshot`.
            env: environment variables of all code and commands.
            require: properties of :attr:`isolation` that must hold; by default the backend's promised ones.
            timeout: lifetime in seconds, see :meth:`set_timeout`; by default unlimited.

        Raises:
            IsolationError: a required property does not hold.
        """
        worker = backends.start(backend, limits or Limits(), packages, require=require, **settings)
        sandbox = cls(worker, backend, env)
        try:
            if snapshot is not None:
                sandbox.files._perform(protocol.UnpackScratch(path="the snapshot"), snapshot)
            if files:
                sandbox.files.write_many(files)
            sandbox.set_timeout(timeout)
        except BaseException:
            worker.close()
            raise
        return sandbox

    def run_code(
        self,
        code: str,
        *,
        language: str | None = None,
        context: str | None = None,
        timeout: float | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        on_error: OnError | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Execution:
        """Run code and return the result. An error in the code is part of the result, not an exception.

        A cell of Python may use ``await``, ``!command``, ``%magic`` lines and ``%%magic`` cells, as in a notebook.
        Output above ``Limits.output_bytes`` is cut (``inside.kernel``).

        Args:
            code: a cell, or a program in a language of :data:`LANGUAGES`.
            language: ``python``, ``bash`` or ``javascript``, whose cells keep their state, or one of :data:`LANGUAGES`;
                by default the context's, or ``python``.
            context: the context that keeps the state; by default the language's own.
            timeout: seconds; by default the limit of the sandbox.
            env: environment variables for this code (in ``bash`` and ``javascript`` also for later cells).

        Raises:
            ContextBusy: the context is running other code.
            NotFound: there is no such context or interpreter.
            SandboxDied: the sandbox has ended.
        """
        seconds, output = self._seconds(timeout), Output(on_stdout, on_stderr, on_result)
        if language in LANGUAGES and context is None:
            limits = self._worker.limits_of(seconds, {**self._env, **(env or {})}) | {"memory_bytes": None}
            done = self._run(protocol.Command(**limits, command=[*LANGUAGES[language], code]), seconds, output)
        elif language is None or language in STATEFUL:
            done = self._run_cell(self._context_of(context, language), code, seconds, output, dict(env or {}))
        else:
            names = STATEFUL if context else (*STATEFUL, *LANGUAGES)
            raise InvalidArgument(f"there is no language {language!r} here; choose from {', '.join(names)}")
        result = execution(done, output, seconds)
        if result.error is not None and on_error is not None:
            on_error(result.error)
        return result

    def _run_cell(self, context: Context, code: str, seconds: float, output: Output, env: dict[str, str]) -> Finished:
        limit = self._worker.limits.output_bytes
        cell = protocol.RunCell(f"context-{context.name}", code, seconds, limit, env)
        for attempt in range(_REOPENED):
            with contextlib.suppress(NotFound):
                return self._run(cell, seconds, output)
            time.sleep(0.05 * attempt)  # after a memory limit, killed processes take a moment to release their memory
            with self._contexts_lock:
                if self._contexts.get(context.name) != context:
                    raise NotFound(f"there is no context {context.name!r} any more")
                with contextlib.suppress(FileThere):  # another thread has restarted it
                    self._open_context(context)
        return no_process("its interpreter was ended again and again before it could begin: memory is short")

    def create_context(self, name: str | None = None, *, language: str = "python", cwd: str | None = None) -> str:
        """Start a new process for cells, with its own namespace, and return the context's name.

        If the process ends (a limit, a crash, memory used by another process), the next cell restarts it without its
        state.

        Args:
            name: name of the context; by default a new one.
            language: language of its cells: ``python``, ``bash`` or ``javascript``.

        Raises:
            FileThere: a context with this name exists.
            NotFound: there is no such folder, or the sandbox lacks the language's program.
        """
        if language not in STATEFUL:
            raise InvalidArgument(f"there are no contexts for {language!r}; there are for {', '.join(STATEFUL)}")
        context = Context(name or f"context-{next(self._numbers)}", language, cwd)
        with self._contexts_lock:
            if context.name in self._contexts:
                raise FileThere(f"there is a context {context.name!r}; remove or restart it")
            self._open_context(context)
            self._contexts[context.name] = context
        return context.name

    def list_contexts(self) -> list[Context]:
        """List the created contexts and the default contexts that have run code."""
        with self._contexts_lock:
            return list(self._contexts.values())

    def restart_context(self, name: str = DEFAULT) -> None:
        """Kill a context's process and session, and restart it without its state."""
        with self._contexts_lock:
            if name not in self._contexts:
                raise NotFound(f"there is no context {name!r}")
            self._end_context(name)
            self._open_context(self._contexts[name])

    def remove_context(self, name: str) -> None:
        """Kill a context's process and session, and remove it."""
        with self._contexts_lock:
            if self._contexts.pop(name, None) is None:
                raise NotFound(f"there is no context {name!r}")
            self._end_context(name)

    def _context_of(self, name: str | None, language: str | None) -> Context:
        """Return the context for a cell; a default context is created with its first cell."""
        name = name or default_name(language or "python")
        with self._contexts_lock:
            if name not in self._contexts and name == default_name(language or "python"):
                context = Context(name, language or "python", None)
                self._open_context(context)
                self._contexts[name] = context
            if name not in self._contexts:
                raise NotFound(f"there is no context {name!r}; there are: {', '.join(self._contexts) or 'none'}")
            context = self._contexts[name]
        if language not in (None, context.language):
            raise InvalidArgument(f"the context {name!r} is for {context.language}, not for {language}")
        return context

    def _open_context(self, context: Context) -> None:
        fields = self._worker.limits_of(None, self._env) | {"timeout": 0}
        if context.language != "python":
            fields["memory_bytes"] = None  # other programs reserve far more address space than they use
        fields |= {"key": f"context-{context.name}", "cwd": context.cwd, "language": context.language}
        self._worker.run(protocol.OpenContext(**fields))

    def _end_context(self, name: str) -> None:
        with contextlib.suppress(NotFound):  # its process had ended
            self._worker.ask(protocol.Signal(f"context-{name}", int(signal.SIGKILL)))

    def interrupt(self, context: str = DEFAULT) -> None:
        """Raise KeyboardInterrupt in the code that a context is running, if any."""
        with contextlib.suppress(NotFound):
            self._worker.ask(protocol.Signal(f"context-{context}", int(signal.SIGINT)))

    def snapshot(self) -> bytes:
        """Archive the files of the scratch folder and of ``/tmp`` for ``create(snapshot=...)``.

        Names, contents, permissions, times and links are kept; processes, variables, contexts and pipes are not.
        """
        return self.files._perform(
            protocol.PackScratch(path="the scratch folder"), most=4 * self._worker.limits.disk_mb << 20
        )


T = TypeVar("T")


class AsyncSandbox:
    """:class:`Sandbox` for asyncio: the same methods, awaited, each in a thread. :attr:`sync` is the sandbox itself."""

    def __init__(self, sandbox: Sandbox):
        self.sync = sandbox
        self.commands, self.files = AsyncCommands(sandbox.commands), _Awaited(sandbox.files)
        self.terminals, self.ports = _Awaited(sandbox.terminals), _Awaited(sandbox.ports)

    @classmethod
    async def create(cls, *args: Any, **kwargs: Any) -> Self:
        """See :meth:`Sandbox.create`."""
        return cls(await asyncio.to_thread(Sandbox.create, *args, **kwargs))

    async def run_code(self, code: str, **kwargs: Any) -> Execution:
        """See :meth:`Sandbox.run_code`. Cancelling the task interrupts the code."""
        context = kwargs.get("context") or default_name(kwargs.get("language") or "python")
        return await _ended(partial(self.sync.run_code, code, **kwargs), partial(self.sync.interrupt, context))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Awaited(self.sync).__getattr__(name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.sync.kill)


#: Background objects, whose methods are awaited as well.
_HANDLES = (CommandHandle, WatchHandle, Terminal, Forward)


class _Awaited:
    """An object whose methods run in a thread."""

    def __init__(self, inner: Any):
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value
        if inspect.isgeneratorfunction(value):
            return lambda *args, **kwargs: _pieces(value(*args, **kwargs))

        async def call(*args: Any, **kwargs: Any) -> Any:
            done = await asyncio.to_thread(value, *args, **kwargs)
            return _Awaited(done) if isinstance(done, _HANDLES) else done

        return call


class AsyncCommands(_Awaited):
    """:class:`~rollenv.sandbox.commands.Commands` for asyncio."""

    async def run(self, command: str | Sequence[str], **kwargs: Any) -> CommandResult:
        """See :meth:`Commands.run`. Cancelling the task kills the command."""
        key = self._inner._new_key()
        return await _ended(partial(self._inner.run, command, _key=key, **kwargs), partial(self._inner._end, key))


async def _ended(run: Callable[[], T], end: Callable[[], bool | None]) -> T:
    """Return ``run()``. If the task is cancelled, call ``end()`` until it does not return false."""
    task = asyncio.ensure_future(asyncio.to_thread(run))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody awaits it any more
        own = ThreadPoolExecutor(1)  # all of asyncio's threads may be waiting for runs like this one
        with contextlib.suppress(SandboxDied):
            while not task.done() and await asyncio.get_running_loop().run_in_executor(own, end) is False:
                await asyncio.wait((task,), timeout=0.1)
        own.shutdown(wait=False)
        raise


async def _pieces(pieces: Generator[Any, None, None]) -> AsyncIterator[Any]:
    """Iterate over a generator whose steps run in a thread."""
    end, step = object(), None
    try:
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(next, pieces, end))
            if (piece := await asyncio.shield(step)) is end:
                return
            yield piece
    finally:
        if step is not None:
            await asyncio.wait((step,))  # after a cancellation the step is still running
            step.exception()  # avoid asyncio's warning if nobody awaits the step
        await asyncio.to_thread(pieces.close)
