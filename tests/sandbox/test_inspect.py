"""inspect_ai's own checks of a sandbox, held against ours through an adapter."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from rollenv.sandbox import AsyncSandbox, Limits, Sandbox, SandboxFileError

pytestmark = pytest.mark.integration
util = pytest.importorskip("inspect_ai.util", reason="inspect_ai is not installed")
self_check = pytest.importorskip("inspect_ai.util._sandbox.self_check", reason="inspect_ai has no self-check suite")

#: These run programs as users of their choice, which a sandbox of one user does not offer.
OTHER_USERS = {"test_exec_as_user", "test_exec_as_nonexistent_user"}
CHECKS = {
    name: check
    for name, check in vars(self_check).items()
    if name.startswith("test_") and inspect.iscoroutinefunction(check)
}


class Adapter(util.SandboxEnvironment):
    """Our sandbox behind inspect_ai's interface."""

    def __init__(self, sandbox: Sandbox):
        super().__init__()
        self.sandbox = AsyncSandbox(sandbox)

    async def exec(self, cmd: list[str], input: Any = None, cwd: Any = None, env: Any = None, user: Any = None, timeout: Any = None, **_: Any) -> Any:  # fmt: skip  # noqa: E501
        if user is not None:
            raise util.SandboxUserUnsupportedError("a sandbox has one user")
        done = await self.sandbox.commands.run(cmd, stdin=input or "", cwd=cwd, env=env, timeout=timeout)
        if done.error is not None and done.error.name == "Timeout":
            raise TimeoutError("the command ran out of time")
        return util.ExecResult(done.exit_code == 0, done.exit_code, done.stdout, done.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        await self.sandbox.files.write(file, contents)

    async def read_file(self, file: str, text: bool = True) -> Any:
        size = (await self.sandbox.files.info(file)).size
        if size > util.SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise util.OutputLimitExceededError(util.SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        data = await self.sandbox.files.read_bytes(file)
        return data.decode() if text else data

    @classmethod
    async def sample_cleanup(cls, *_: Any) -> None:
        """The fixture ends it."""


@pytest.fixture(scope="module")
def adapted() -> Iterator[Adapter]:
    with Sandbox.create(limits=Limits(seconds=60, memory_mb=1024, disk_mb=256)) as sandbox:
        yield Adapter(sandbox)


@pytest.mark.parametrize("name", sorted(set(CHECKS) - OTHER_USERS))
def test_check(name, adapted):
    asyncio.run(CHECKS[name](adapted))


def test_errors_have_the_kinds_that_inspect_expects(adapted):
    for path, kind in {"/etc/passwd": PermissionError, "absent/x": OSError}.items():
        if kind is PermissionError:
            with pytest.raises(kind):
                adapted.sandbox.sync.files.write(path, "x")
        else:
            with pytest.raises(SandboxFileError):
                adapted.sandbox.sync.files.read(path)
