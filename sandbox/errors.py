"""Errors of sandboxes. An error in untrusted code is not an exception but part of the Execution.

This package stands alone, so they are none of :mod:`rollenv.core.errors`, but have the same ``exit_code``.
"""

from __future__ import annotations

import errno as numbers


class BaseSandboxError(Exception):
    """Base of all errors that this package raises on purpose."""

    #: Exit status of a command that this error ends.
    exit_code = 1


class InvalidArgument(BaseSandboxError, ValueError):
    """An argument is wrong."""

    exit_code = 2


class MissingPackage(BaseSandboxError, ImportError):
    """A Python package that a backend needs is not installed."""

    exit_code = 3


class SandboxError(BaseSandboxError):
    """A sandbox cannot be had, or cannot do what it was asked for."""


class IsolationError(SandboxError):
    """The machine cannot provide the requested isolation."""


class SandboxDied(SandboxError):
    """The sandbox had ended before the request, or its owner ended it during the request."""


class SandboxTimeout(SandboxError, TimeoutError):
    """A command ran longer than its timeout."""


class ContextBusy(SandboxError):
    """The context is running other code."""


class SandboxPaused(SandboxError):
    """The sandbox is paused."""


class PoolFull(SandboxError):
    """More runs are waiting than the pool accepts."""


class SandboxFileError(SandboxError, OSError):
    """An operation failed inside the sandbox, with ``errno``."""


class NotFound(SandboxFileError, FileNotFoundError):
    """There is no such file, program, context or process in the sandbox."""


class FileIsDirectory(SandboxFileError, IsADirectoryError):
    """The path is a folder."""


class NotADirectory(SandboxFileError, NotADirectoryError):
    """The path is not a folder."""


class FileRefused(SandboxFileError, PermissionError):
    """Code in the sandbox has no permission for this."""


class FileThere(SandboxFileError, FileExistsError):
    """The path already exists."""


_KINDS: dict[int, type[SandboxFileError]] = {
    numbers.ENOENT: NotFound,
    numbers.ESRCH: NotFound,
    numbers.EISDIR: FileIsDirectory,
    numbers.ENOTDIR: NotADirectory,
    numbers.EACCES: FileRefused,
    numbers.EPERM: FileRefused,
    numbers.EROFS: FileRefused,
    numbers.EEXIST: FileThere,
}


def operation_error(number: int, message: str) -> SandboxError:
    """Convert an error number from inside the sandbox to an exception. ``number``: the ``errno`` of the failed call."""
    if number == numbers.EBUSY:
        return ContextBusy(message)
    if number == numbers.ESHUTDOWN:
        return SandboxPaused(message)
    if number == numbers.EAGAIN:
        message += ": the sandbox has no process left for it; end some, or remove contexts"
    error = _KINDS.get(number, SandboxFileError)(message)
    error.errno = number
    return error
