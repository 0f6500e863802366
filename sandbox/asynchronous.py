"""The sandbox for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self, TypeVar

from rollenv.sandbox.commands import CommandHandle
from rollenv.sandbox.errors import SandboxDied
from rollenv.sandbox.filesystem import WatchHandle
from rollenv.sandbox.ports import Forward
from rollenv.sandbox.sandbox import Sandbox, default_name
from rollenv.sandbox.terminals import Terminal
from rollenv.sandbox.types import CommandResult, Execution

T = TypeVar("T")


class AsyncSandbox:
    """:class:`Sandbox` for asyncio: the same methods, awaited, each in a thread. :attr:`sync` has the rest."""

    def __init__(self, sandbox: Sandbox):
        self.sync = sandbox
        self.commands, self.files = AsyncCommands(sandbox.commands), _Awaited(sandbox.files)
        self.terminals, self.ports = _Awaited(sandbox.terminals), _Awaited(sandbox.ports)

    @classmethod
    async def create(cls, *args: Any, **kwargs: Any) -> Self:
        """See :meth:`Sandbox.create`.

        Args:
            args: of :meth:`Sandbox.create`.
            kwargs: of :meth:`Sandbox.create`.
        """
        return cls(await asyncio.to_thread(Sandbox.create, *args, **kwargs))

    async def run_code(self, code: str, **kwargs: Any) -> Execution:
        """See :meth:`Sandbox.run_code`. Cancelling the task interrupts the code.

        Args:
            kwargs: of :meth:`Sandbox.run_code`.
        """
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


#: Background objects: their methods are awaited as well.
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
        """See :meth:`Commands.run`. Cancelling the task kills the command.

        Args:
            command: for the shell, or a program with its arguments.
            kwargs: of :meth:`Commands.run`.
        """
        key = self._inner._new_key()
        return await _ended(partial(self._inner.run, command, _key=key, **kwargs), partial(self._inner._end, key))


async def _ended(run: Callable[[], T], end: Callable[[], bool | None]) -> T:
    """Return ``run()``. If its task is cancelled, call ``end()`` until it returns something else than false."""
    task = asyncio.ensure_future(asyncio.to_thread(run))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody waits for it any more
        own = ThreadPoolExecutor(1)  # all threads of asyncio's may wait for what is to be ended here
        with contextlib.suppress(SandboxDied):
            while not task.done() and await asyncio.get_running_loop().run_in_executor(own, end) is False:
                await asyncio.wait((task,), timeout=0.1)
        own.shutdown(wait=False)
        raise


async def _pieces(pieces: Generator[Any, None, None]) -> AsyncIterator[Any]:
    """An iteration whose steps run in a thread."""
    end, step = object(), None
    try:
        while True:
            step = asyncio.ensure_future(asyncio.to_thread(next, pieces, end))
            if (piece := await asyncio.shield(step)) is end:
                return
            yield piece
    finally:
        if step is not None:
            await asyncio.wait((step,))  # after a cancellation a thread is still in it
            step.exception()  # whoever waited for it was told
        await asyncio.to_thread(pieces.close)
