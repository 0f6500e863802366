"""What a tool is."""

from __future__ import annotations

from typing import NamedTuple


class ToolResult(NamedTuple):
    """What came of an action; unpacks in this order."""

    is_valid: bool
    """Whether the action calls this tool at all."""
    has_error: bool
    """Whether the call was malformed or failed."""
    observation: str
    """What the agent reads; empty if the action does not call this tool."""
    parsed_action: str
    """The action up to the end of the call."""


#: The result for an action that is not for this tool.
NOT_CALLED = ToolResult(False, False, "", "")


class BaseTool:
    """A tool recognises its calls in an action and answers them. One object may serve many environments and threads."""

    tool_type = "tool"

    def __init__(self, num_workers: int = 1):
        self.num_workers = num_workers

    @property
    def name(self) -> str:
        return self.tool_type

    def instruction_string(self) -> str:
        """How to call it, for the prompt."""
        raise NotImplementedError(f"{type(self).__name__} has no instructions")

    def execute_action(self, action: str) -> ToolResult:
        """Answer the first call in the action; :data:`NOT_CALLED` if there is none. Never raises."""
        raise NotImplementedError(f"{type(self).__name__} does nothing")

    def close(self) -> None:
        """Let go of every resource; calling it again does nothing."""
