"""The tool that runs Python."""

from __future__ import annotations

import copy

from rollenv.core import UsageError
from rollenv.parsing import Element, code_blocks, first_tagged
from rollenv.sandbox import Runner, Sandbox, SandboxDied, shared_pool
from rollenv.tools.base import NOT_CALLED, BaseTool, ToolResult

#: What of a program's output an agent reads at most.
MAX_CHARACTERS = 20_000


class PythonCodeTool(BaseTool):
    """Runs the first ``<python>`` element or Python code fence of an action in an isolated sandbox.

    Args:
        timeout: seconds for a program; they hold.
        sandbox_type: ``local`` is the isolated sandbox of this process; GEM's ``none`` and ``bwrap`` mean the same,
            since untrusted code is never run in the open.
        keep_error_last_line: show only the last line of an error.
        runner: runs the code instead; closing it stays with its owner.
        stateful: keep variables from call to call, in a sandbox that belongs to this tool and ends with it.
    """

    tool_type = "python"

    def __init__(
        self,
        timeout: float = 5,
        sandbox_type: str = "local",
        keep_error_last_line: bool = False,
        runner: Runner | None = None,
        stateful: bool = False,
        num_workers: int = 1,
    ):
        super().__init__(num_workers)
        if sandbox_type not in ("local", "none", "bwrap"):
            raise UsageError(f"sandbox_type {sandbox_type!r} is unknown; there is 'local', or pass runner=")
        self.timeout, self.keep_error_last_line = timeout, keep_error_last_line
        self.stateful, self._runner = stateful, runner
        self._sandbox: Sandbox | None = None

    def instruction_string(self) -> str:
        return "To run Python code, write it between <python> and </python>; what it prints is shown to you."

    def execute_action(self, action: str) -> ToolResult:
        block = _first_program(action)
        if block is None:
            return NOT_CALLED
        output, errors = self._in_sandbox(block.content) if self.stateful else self._fresh(block.content)
        if errors and self.keep_error_last_line:
            errors = errors.splitlines()[-1]
        text = _shortened("\n".join(part for part in (output.rstrip(), errors) if part))
        return ToolResult(True, bool(errors), f"Code execution result: {text}\n", action[: block.end])

    def _fresh(self, code: str) -> tuple[str, str]:
        """(output, errors); without a failure there are no errors, and what went to standard error is output."""
        result = (self._runner or shared_pool()).run(code, timeout=self.timeout)
        said = result.stderr.strip()
        if result.timed_out:
            return result.stdout, f"{said}\nStopped after {self.timeout:g} seconds.".strip()
        if result.truncated or result.out_of_memory:
            return result.stdout, "Stopped: too much output." if result.truncated else "Stopped: too much memory."
        if result.exit_code:
            return result.stdout, said or f"It exited with {result.exit_code}."
        return f"{result.stdout}{said}", ""

    def _in_sandbox(self, code: str) -> tuple[str, str]:
        if self._sandbox is None or not self._sandbox.alive:
            self._sandbox = Sandbox.create()
        try:
            done = self._sandbox.run_code(code, timeout=self.timeout)
        except SandboxDied:  # code of an earlier call may have seen to that: it is no failure of the environment
            return "", "The sandbox had ended; its variables are lost."
        output = "".join(done.logs.stdout) + (f"{done.text}\n" if done.text is not None else "")
        return output, "" if done.error is None else done.error.traceback.strip() or done.error.value

    def reset(self) -> None:
        """An episode begins with no variables of the one before."""
        self.close()

    def spawn(self, same_state: bool = False) -> PythonCodeTool:
        if not self.stateful:
            return self
        if same_state and self._sandbox is not None:
            raise UsageError("the variables of a stateful Python tool cannot be copied: spawn a fresh environment")
        twin = copy.copy(self)
        twin._sandbox = None
        return twin

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.kill()
            self._sandbox = None


def _first_program(action: str) -> Element | None:
    fenced = (block for language, block in code_blocks(action) if language in ("python", "python3", "py"))
    found = [block for block in (first_tagged(action, "python"), next(fenced, None)) if block is not None]
    return min(found, key=lambda block: block.end, default=None)


def _shortened(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n[{len(text) - MAX_CHARACTERS} characters left out]\n{text[-half:]}"
