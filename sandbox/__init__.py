"""Running code that nobody has read: isolated, limited, and faster than a new interpreter."""

from rollenv.sandbox.errors import (
    ContextBusy,
    IsolationError,
    NotFound,
    PoolFull,
    SandboxDied,
    SandboxError,
    SandboxFileError,
    SandboxTimeout,
)
from rollenv.sandbox.pool import Pool, shared_pool
from rollenv.sandbox.sandbox import AsyncSandbox, CommandHandle, Sandbox
from rollenv.sandbox.types import (
    CommandResult,
    Entry,
    Execution,
    ExecutionError,
    Limits,
    Logs,
    Result,
    Runner,
    RunResult,
)

__all__ = [
    "AsyncSandbox",
    "CommandHandle",
    "CommandResult",
    "ContextBusy",
    "Entry",
    "Execution",
    "ExecutionError",
    "IsolationError",
    "Limits",
    "Logs",
    "NotFound",
    "Pool",
    "PoolFull",
    "Result",
    "RunResult",
    "Runner",
    "Sandbox",
    "SandboxDied",
    "SandboxError",
    "SandboxFileError",
    "SandboxTimeout",
    "shared_pool",
]
