"""smolagents (1.26): an executor that runs an agent's code in rollenv's sandbox.

with BoxExecutor() as executor:
    agent = CodeAgent(tools=[...], model=model, executor=executor)
    agent.run("...")
"""

from __future__ import annotations

import base64
import copy
import io
from collections.abc import Sequence
from typing import Any, Self

from rollenv.core.errors import MissingExtra
from rollenv.core.needs import peer
from rollenv.sandbox import Limits, Result, Sandbox, SandboxDied

with peer("smolagents", "1.26"):
    import PIL.Image
    from smolagents import AgentLogger, LogLevel
    from smolagents.local_python_executor import CodeOutput
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.utils import AgentError, truncate_content

#: Limits of a step.
LIMITS = Limits(seconds=60.0, memory_mb=2048, disk_mb=256)
#: Modules that smolagents' own code in the sandbox imports.
_NEEDED = ("numpy", "PIL")
#: Maximum characters of output for the model, the same as with smolagents' own executor.
_SHOWN = 50_000
_LOST = "The interpreter was started again: variables of earlier steps are gone, tools are there."


class BoxExecutor(RemotePythonExecutor):  # type: ignore[misc]
    """Runs steps in a sandbox, which keeps variables from step to step. It has no network.

    Where a step ends the interpreter (a limit, ``os._exit``), the next one finds the tools again, without variables.

    Args:
        packages: modules that code imports, which have to be installed beside smolagents.
        limits: limits of each step and of the sandbox.

    Raises:
        IsolationError: if no sandbox can be started here.
    """

    def __init__(
        self, packages: Sequence[str] = (), *, limits: Limits | None = None, logger: AgentLogger | None = None
    ):
        super().__init__([], logger or AgentLogger(level=LogLevel.ERROR))
        self._settings: dict[str, Any] = {"packages": [*_NEEDED, *packages], "limits": limits or LIMITS}
        self._tools: dict[str, Any] = {}
        self._variables: dict[str, Any] = {}
        self._ended = False
        self.sandbox = Sandbox.create(**self._settings)

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Define tools in the sandbox.

        Raises:
            AgentError: if one cannot be defined there.
        """
        self._tools = dict(tools)
        if "final_answer" in tools:  # smolagents changes it, and cannot do so twice
            tools = {**tools, "final_answer": copy.copy(tools["final_answer"])}
        super().send_tools(tools)

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Define variables in the sandbox."""
        self._variables |= variables
        super().send_variables(variables)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Check that the tools' imports are available; nothing can be installed."""
        for name in additional_imports:
            module = "PIL" if name == "pillow" else name
            if self.sandbox.run_code(f"import {module}").error is not None:
                raise MissingExtra(f"a tool imports {module}, which is not installed beside smolagents: install it")
        return additional_imports

    def __call__(self, code_action: str) -> CodeOutput:
        """Run a step.

        Raises:
            AgentError: if it fails; the agent sees the reason.
        """
        if self._ended:
            if not self.sandbox.alive:
                self.sandbox = Sandbox.create(**self._settings)
            self._ended = False
            self.send_variables(self._variables)
            self.send_tools(self._tools)
        return self.run_code_raise_errors(code_action)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run code.

        Raises:
            AgentError: if it fails; the agent sees the reason.
        """
        try:
            done = self.sandbox.run_code(code)
        except SandboxDied as error:
            self._ended = True
            raise AgentError(f"{error}. {_LOST}", self.logger) from error
        self._ended |= done.exit_code is not None or not self.sandbox.alive
        logs = truncate_content("".join(done.logs.stdout), max_length=_SHOWN)
        if done.error is None:
            return CodeOutput(_shown(done.results), logs, is_final_answer=False)
        if done.error.name == self.FINAL_ANSWER_EXCEPTION:
            try:
                answer = self._deserialize_final_answer(done.error.value)
            except Exception as error:  # the code can raise the exception with any value
                text = f"the final answer cannot be read (it may have 1 MiB): {error}"
                raise AgentError(text, self.logger) from error
            return CodeOutput(answer, logs, is_final_answer=True)
        shown = truncate_content(done.error.traceback.strip() or f"{done.error.name}: {done.error.value}", _SHOWN)
        lost = f"\n{_LOST}" if self._ended else ""
        raise AgentError(f"{logs}\nExecuting code yielded an error:\n{shown}{lost}", self.logger)

    def cleanup(self) -> None:
        """End the sandbox. Agents call this, too."""
        self.sandbox.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _shown(results: list[Result]) -> Any:
    """Return the value of the last expression: a picture or text."""
    main = next((result for result in results if result.is_main_result), None)
    picture = (main.png or main.jpeg) if main is not None else None
    if picture is not None:
        try:
            return PIL.Image.open(io.BytesIO(base64.b64decode(picture)))
        except (ValueError, OSError):  # code made it
            pass
    return main.text if main is not None else None
