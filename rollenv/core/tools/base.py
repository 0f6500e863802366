"""The interface of tools."""

from __future__ import annotations

import functools
import threading
from typing import NamedTuple

_COUNTING = threading.Lock()


class ToolResult(NamedTuple):
    """The result of an action; unpacks in this order."""

    is_valid: bool
    """True if the action calls this tool at all."""
    has_error: bool
    """True if the call was malformed or failed."""
    observation: str
    """Text for the agent; empty if the action does not call this tool."""
    parsed_action: str
    """The action up to the end of the call."""


#: The result for an action without a call of this tool.
NOT_CALLED = ToolResult(False, False, "", "")


class BaseTool:
    """A tool recognises its calls in an action and answers them. One object may serve many environments and threads.

    A tool that remembers anything between calls belongs to one environment: it defines :meth:`reset` and :meth:`spawn`.
    """

    tool_type = "tool"
    #: Number of environments that use the tool; the last one to release it closes it.
    _users = 0

    def __init__(self, num_workers: int = 1):
        self.num_workers = num_workers

    @functools.cached_property
    def name(self) -> str:
        """The tool's name; an author may set another."""
        return self.tool_type

    def instruction_string(self) -> str:
        """Instructions for the prompt on how to call it."""
        raise NotImplementedError(f"{type(self).__name__} has no instructions")

    def execute_action(self, action: str) -> ToolResult:
        """Answer the first call in the action; :data:`NOT_CALLED` if there is none.

        Mistakes of the agent are in the answer. Only errors that the user has to fix are raised, as in :meth:`check`.
        """
        raise NotImplementedError(f"{type(self).__name__} does nothing")

    def check(self) -> None:
        """Called when an environment is wrapped."""

    def reset(self) -> None:
        """Reset for a new episode."""

    def spawn(self, same_state: bool = False) -> BaseTool:
        """Return the tool for a copy of the environment: itself if it has no state."""
        return self

    def close(self) -> None:
        """Release every resource; calling it again does nothing. A later call of the tool starts over."""

    def acquire(self) -> BaseTool:
        """Count one more environment."""
        with _COUNTING:
            self._users += 1
        return self

    def release(self) -> None:
        """Count one environment less; the last one closes the tool."""
        with _COUNTING:
            self._users -= 1
            last = self._users == 0
        if last:
            self.close()
