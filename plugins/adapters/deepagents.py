"""deepagents (0.7): rollenv's machines and sandboxes as the backend of an agent's file tools and of its ``execute``.

with BoxBackend() as backend:
    agent = create_deep_agent(model=model, backend=backend)
    agent.invoke({"messages": [("user", "...")]})
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from functools import partial
from typing import Self

from rollenv.core.needs import peer
from rollenv.sandbox import (
    CommandResult,
    FileIsDirectory,
    FileRefused,
    Limits,
    Machine,
    NotADirectory,
    NotFound,
    Sandbox,
    SandboxDied,
    SandboxFileError,
)
from rollenv.sandbox.sandbox import AsyncCommands

with peer("deepagents", "0.7"):
    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse, WriteResult
    from deepagents.backends.sandbox import BaseSandbox

#: Limits of the machine that is started by default; ``execute(timeout=...)`` changes the seconds.
LIMITS = Limits(seconds=120.0, memory_mb=2048, disk_mb=1024, processes=256, files=100_000, open_files=1024)
#: Seconds of a command with ``timeout=0``, which means no limit.
_UNLIMITED = 24 * 3600.0
#: Exit codes of shells and `timeout`.
_TIMED_OUT, _CANNOT_RUN = 124, 126
_WORDS = {FileIsDirectory: "is_directory", FileRefused: "permission_denied", NotADirectory: "invalid_path"}


class BoxBackend(BaseSandbox):  # type: ignore[misc]
    """A machine, or a sandbox, for one agent; deepagents' file tools work through its commands.

    Args:
        sandbox: what it works in, such as ``Machine.create(image)``; by default a new machine with :data:`LIMITS`. A
            plain :class:`~rollenv.sandbox.Sandbox` is read-only outside of its home folder and ``/tmp``.

    Raises:
        IsolationError: if no machine can be started here.
    """

    def __init__(self, sandbox: Sandbox | Machine | None = None):
        self.sandbox: Sandbox | Machine = sandbox if sandbox is not None else Machine.create(limits=LIMITS)
        #: Long output goes to a file of its own where every folder can be written.
        self.enable_capture_offload = isinstance(self.sandbox, Machine)
        self._id = f"rollenv-{uuid.uuid4().hex[:12]}"

    @property
    def id(self) -> str:
        """Unique id of this backend."""
        return self._id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command line with sh.

        Args:
            timeout: seconds; 0 for no limit, None for that of the limits.

        Raises:
            SandboxDied: if the sandbox has ended.
        """
        try:
            return _response(self.sandbox.commands.run(command, timeout=_seconds(timeout)))
        except SandboxFileError as error:
            return _could_not_start(error)

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """:meth:`execute` for asyncio. Where it is cancelled, the command is killed.

        Raises:
            SandboxDied: if the sandbox has ended.
        """
        try:
            return _response(await AsyncCommands(self.sandbox.commands).run(command, timeout=_seconds(timeout)))
        except SandboxFileError as error:
            return _could_not_start(error)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a text file; missing folders are made."""
        error = self.upload_files([(file_path, content.encode("utf-8", "replace"))])[0].error
        return (
            WriteResult(error=f"Failed to write file '{file_path}': {error}") if error else WriteResult(path=file_path)
        )

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """:meth:`write` for asyncio."""
        return await asyncio.to_thread(self.write, file_path, content)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files.

        Args:
            files: absolute paths and contents; missing folders are made.
        """
        return [
            FileUploadResponse(path=path, error=self._try(path, partial(self.sandbox.files.write, path, data)))
            for path, data in files
        ]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files."""
        responses = []
        for path in paths:
            found: list[bytes] = []
            error = self._try(path, partial(self._read, path, found))
            responses.append(FileDownloadResponse(path=path, content=found[0] if found else None, error=error))
        return responses

    def _read(self, path: str, found: list[bytes]) -> None:
        found.append(self.sandbox.files.read_bytes(path))

    def _try(self, path: str, operation: Callable[[], None]) -> str | None:
        """Run a function, and return deepagents' name of its error; None on success."""
        if not path.startswith("/") or "\0" in path:
            return "invalid_path"
        try:
            operation()
        except SandboxFileError as error:
            word = "file_not_found" if isinstance(error, NotFound) else str(error)
            return _WORDS.get(type(error), word)
        return None

    def close(self) -> None:
        """End the sandbox; calling it again does nothing."""
        self.sandbox.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _seconds(timeout: int | None) -> float | None:
    return _UNLIMITED if timeout == 0 else timeout


def _could_not_start(error: SandboxFileError) -> ExecuteResponse:
    return ExecuteResponse(output=f"Error: {error}", exit_code=_CANNOT_RUN)


def _response(done: CommandResult) -> ExecuteResponse:
    kind = done.error.name if done.error is not None else ""
    if kind == "SandboxDied":
        raise SandboxDied("the sandbox ended while a command ran in it")
    output = done.stdout + ("\n" if done.stdout and done.stderr and not done.stdout.endswith("\n") else "")
    output += done.stderr
    if done.error is not None and kind not in ("", "Exit"):
        output = f"{output.rstrip()}\nError: {kind}: {done.error.value}".lstrip()
    code = _TIMED_OUT if kind == "Timeout" else done.exit_code
    return ExecuteResponse(output=output, exit_code=code, truncated=kind == "OutputLimit")
