"""The contexts of a sandbox: processes that keep the state of one cell for the next."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading

from rollenv.core import UsageError
from rollenv.sandbox.errors import FileThere, NotFound
from rollenv.sandbox.inside import protocol
from rollenv.sandbox.types import Context
from rollenv.sandbox.worker import Worker

#: The context of cells that name none, for Python; other languages have one each.
DEFAULT = "default"
#: Languages whose cells keep state, and those whose programs run on their own.
STATEFUL = ("python", "bash", "javascript")


def default_name(language: str) -> str:
    """The name of a language's default context."""
    return DEFAULT if language == "python" else f"{DEFAULT}-{language}"


class Contexts:
    """The host's view of the contexts; their processes are in the sandbox. Threads may share it."""

    def __init__(self, worker: Worker, env: dict[str, str]):
        self._worker, self._env = worker, env
        self._known: dict[str, Context] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def create(self, name: str | None, language: str, cwd: str | None) -> str:
        """Create a context and return its name.

        Args:
            name: by default a new one.
            language: a language whose cells keep state.
            cwd: working directory; by default the home directory.

        Raises:
            UsageError: the language keeps no state.
            FileThere: a context of that name exists.
        """
        if language not in STATEFUL:
            raise UsageError(f"there are no contexts for {language!r}; there are for {', '.join(STATEFUL)}")
        context = Context(name or f"context-{next(self._numbers)}", language, cwd)
        with self._lock:
            if context.name in self._known:
                raise FileThere(f"there is a context {context.name!r}; remove or restart it")
            self._open(context)
            self._known[context.name] = context
        return context.name

    def of(self, name: str | None, language: str | None) -> Context:
        """Find the context for a cell; a default context is created with its first cell.

        Args:
            name: by default the language's default context.
            language: by default the context's, or Python.

        Raises:
            NotFound: there is no context of that name.
            UsageError: the context is for another language.
        """
        name = name or default_name(language or "python")
        with self._lock:
            if name not in self._known and name == default_name(language or "python"):
                context = Context(name, language or "python", None)
                self._open(context)
                self._known[name] = context
            if name not in self._known:
                raise NotFound(f"there is no context {name!r}; there are: {', '.join(self._known) or 'none'}")
            context = self._known[name]
        if language not in (None, context.language):
            raise UsageError(f"the context {name!r} is for {context.language}, not for {language}")
        return context

    def list(self) -> list[Context]:
        """List all contexts."""
        with self._lock:
            return list(self._known.values())

    def reopen(self, context: Context) -> None:
        """Reopen a context whose process has ended, unless another thread did so first."""
        with self._lock:
            if self._known.get(context.name) != context:
                raise NotFound(f"there is no context {context.name!r} any more")
            with contextlib.suppress(FileThere):
                self._open(context)

    def restart(self, name: str) -> None:
        """End its process and reopen it without its variables, in its first folder."""
        with self._lock:
            if name not in self._known:
                raise NotFound(f"there is no context {name!r}")
            self._end(name)
            self._open(self._known[name])

    def remove(self, name: str) -> None:
        """End it permanently."""
        with self._lock:
            if self._known.pop(name, None) is None:
                raise NotFound(f"there is no context {name!r}")
            self._end(name)

    def _end(self, name: str) -> None:
        with contextlib.suppress(NotFound):  # its process had ended
            self._worker.ask(protocol.Signal(f"context-{name}", int(signal.SIGKILL)))

    def _open(self, context: Context) -> None:
        fields = self._worker.limits_of(None, self._env) | {"timeout": 0}
        if context.language != "python":
            fields["memory_bytes"] = None  # other programs reserve far more address space than they use
        fields |= {"key": f"context-{context.name}", "cwd": context.cwd, "language": context.language}
        self._worker.run(protocol.OpenContext(**fields))
