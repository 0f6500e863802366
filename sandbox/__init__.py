"""Sandboxes for untrusted code: isolated, limited, and faster than a new interpreter."""

from rollenv.sandbox.commands import CommandHandle, Terminal
from rollenv.sandbox.errors import (
    BaseSandboxError,
    ContextBusy,
    FileIsDirectory,
    FileRefused,
    FileThere,
    InvalidArgument,
    IsolationError,
    MissingPackage,
    NotADirectory,
    NotFound,
    PoolFull,
    SandboxDied,
    SandboxError,
    SandboxFileError,
    SandboxPaused,
    SandboxTimeout,
)
from rollenv.sandbox.filesystem import FileEvent, WatchHandle
from rollenv.sandbox.images import Image
from rollenv.sandbox.machine import Machine
from rollenv.sandbox.network import Forward
from rollenv.sandbox.pool import Pool, shared_pool
from rollenv.sandbox.sandbox import AsyncSandbox, BaseSandbox, Sandbox
from rollenv.sandbox.types import (
    CommandResult,
    Context,
    Entry,
    Execution,
    ExecutionError,
    Limits,
    Logs,
    Metrics,
    Process,
    Result,
    Runner,
    RunResult,
)

__all__ = [
    "AsyncSandbox",
    "BaseSandbox",
    "BaseSandboxError",
    "CommandHandle",
    "CommandResult",
    "Context",
    "ContextBusy",
    "Entry",
    "Execution",
    "ExecutionError",
    "FileEvent",
    "FileIsDirectory",
    "FileRefused",
    "FileThere",
    "Forward",
    "Image",
    "InvalidArgument",
    "IsolationError",
    "Limits",
    "Logs",
    "Machine",
    "Metrics",
    "MissingPackage",
    "NotADirectory",
    "NotFound",
    "Pool",
    "PoolFull",
    "Process",
    "Result",
    "RunResult",
    "Runner",
    "Sandbox",
    "SandboxDied",
    "SandboxError",
    "SandboxFileError",
    "SandboxPaused",
    "SandboxTimeout",
    "Terminal",
    "WatchHandle",
    "shared_pool",
]
