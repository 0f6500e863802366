"""What can go wrong around a sandbox. What foreign code does wrong is never an exception: it is in the Execution."""

from __future__ import annotations

from rollenv.core import RollenvError


class SandboxError(RollenvError):
    """Base of the errors of this package."""


class IsolationError(SandboxError):
    """The machine does not give the isolation that was asked for."""


class SandboxDied(SandboxError):
    """The sandbox ended, or stopped answering, before the request was done."""


class SandboxTimeout(SandboxError, TimeoutError):
    """A command ran longer than it was allowed to."""


class ContextBusy(SandboxError):
    """The context is running other code."""


class PoolFull(SandboxError):
    """More runs are waiting than the pool accepts."""


class NotFound(SandboxError, FileNotFoundError):
    """There is no such file, program, context or process in the sandbox."""


class SandboxFileError(SandboxError, OSError):
    """A file operation failed inside the sandbox."""
