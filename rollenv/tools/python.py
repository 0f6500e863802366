"""The tool that runs Python."""

from __future__ import annotations

import re

from rollenv.core import UsageError
from rollenv.sandbox.plain import PlainRunner
from rollenv.sandbox.types import Runner, RunResult
from rollenv.tools.base import NOT_CALLED, BaseTool, ToolResult

_BLOCK = re.compile(r"<python>(.*?)</python>|```[ \t]*(?:python3?|py)[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)

#: What of a program's output an agent reads at most.
MAX_CHARACTERS = 20_000


class PythonCodeTool(BaseTool):
    """Runs the first ``<python>`` element or Python code fence of an action, every time in a fresh interpreter.

    Args:
        timeout: seconds for a program; they hold.
        sandbox_type: ``none`` runs it as an ordinary process of this user, without isolation.
        keep_error_last_line: show only the last line of an error.
        runner: runs the code instead; closing it stays with its owner.
    """

    tool_type = "python"

    def __init__(
        self,
        timeout: float = 5,
        sandbox_type: str = "none",
        keep_error_last_line: bool = False,
        runner: Runner | None = None,
        num_workers: int = 1,
    ):
        super().__init__(num_workers)
        if runner is None and sandbox_type != "none":
            raise UsageError(f"sandbox_type {sandbox_type!r} is unknown; there is 'none', or pass runner=")
        self.timeout, self.keep_error_last_line = timeout, keep_error_last_line
        self.runner: Runner = runner or PlainRunner()

    def instruction_string(self) -> str:
        return "To run Python code, write it between <python> and </python>; what it prints is shown to you."

    def execute_action(self, action: str) -> ToolResult:
        block = _BLOCK.search(action)
        if block is None:
            return NOT_CALLED
        code = block[1] if block[1] is not None else block[2]
        result = self.runner.run(code, timeout=self.timeout)
        failed = result.timed_out or result.exit_code != 0
        return ToolResult(True, failed, f"Code execution result: {self._shown(result)}\n", action[: block.end()])

    def _shown(self, result: RunResult) -> str:
        errors = result.stderr.strip()
        if errors and self.keep_error_last_line:
            errors = errors.splitlines()[-1]
        if result.timed_out:
            errors = f"{errors}\nStopped after {self.timeout:g} seconds.".strip()
        text = "\n".join(part for part in (result.stdout.rstrip(), errors) if part)
        if len(text) > MAX_CHARACTERS:
            half = MAX_CHARACTERS // 2
            text = f"{text[:half]}\n[{len(text) - MAX_CHARACTERS} characters left out]\n{text[-half:]}"
        return text
