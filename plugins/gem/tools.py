"""GEM's tools: rollenv's, with GEM's arguments, names and results for actions without a call."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.parsing import first_tagged
from rollenv.core.picture_forms import observed
from rollenv.core.tools import base, mcp, search
from rollenv.core.tools import python as python_tool
from rollenv.core.tools.base import ToolResult
from rollenv.core.tools.calls import find_calls
from rollenv.plugins.gem import current

TIMEOUT = 5


class BaseTool(base.BaseTool, metaclass=abc.ABCMeta):
    """The base of tools written for GEM. Every tool of rollenv is an instance of it."""

    tool_type = "base"

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return issubclass(other, base.BaseTool) if cls is BaseTool else NotImplemented


class AnyTool(base.BaseTool):
    """An adapter of a tool written for GEM, which has instructions and results only, to rollenv's interface."""

    def __init__(self, tool: Any):
        self.tool = tool

    def __getattr__(self, name: str) -> Any:
        if name == "tool" or name.startswith("__"):  # a copy is being made, and of this one, not of the tool
            raise AttributeError(name)
        return getattr(self.tool, name)

    @property
    def tool_type(self) -> str:  # type: ignore[override]
        return getattr(self.tool, "tool_type", "base")

    @property
    def name(self) -> str:
        return getattr(self.tool, "name", self.tool_type)

    def instruction_string(self) -> str:
        return str(self.tool.instruction_string())

    def execute_action(self, action: str) -> ToolResult:
        return ToolResult(*self.tool.execute_action(action))

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.tool

    def __hash__(self) -> int:
        return hash(self.tool)


def as_tool(tool: Any) -> base.BaseTool:
    """Adapt a tool of GEM or rollenv to rollenv's wrapper."""
    return tool if isinstance(tool, base.BaseTool) and BaseTool not in type(tool).__mro__ else AnyTool(tool)


class PythonCodeTool(python_tool.PythonCodeTool):
    """Runs code; a program that lacks a common import runs again with it. ``_parse_action`` may be replaced."""

    tool_type = "python_code"

    def __init__(
        self,
        timeout: float = TIMEOUT,
        sandbox_type: str = "none",
        keep_error_last_line: bool = False,
        common_imports: bool = True,
        **more: Any,
    ):
        super().__init__(timeout, sandbox_type, keep_error_last_line, common_imports=common_imports, **more)
        self.sandbox_type = sandbox_type

    def _parse_action(self, action: str) -> tuple[str | None, str, bool]:
        """The program, the action up to its end, and whether there is one."""
        found = [where for opening, closing in _AROUND if (where := _between(action, opening, closing))]
        if not found:
            return None, action, False
        start, end, after = min(found, key=lambda where: where[1])
        return action[start:end].strip(), action[:after], True

    def execute_action(self, action: str) -> ToolResult:
        code, parsed, valid = self._parse_action(action)
        if not valid:
            return ToolResult(False, True, "", parsed)
        success, output, errors = self._run(code or "")
        if errors and self.keep_error_last_line:
            errors = errors.split("\n")[-1]
        text = (f"{output}\n{errors}" if errors else output).lstrip(" \n")
        return ToolResult(True, not success, f"Code execution result: {python_tool.shortened(text)}\n", parsed)

    def _run(self, code: str) -> tuple[bool, str, str]:
        """``(success, stdout, stderr)``, from ``run_python`` of GEM's module, unless a setting of rollenv's is used."""
        if self.stateful or self._runner or not self.common_imports:
            output, errors = self._in_sandbox(code) if self.stateful else self._fresh(code)
            return not errors, output, errors
        if code == "...":  # a place that was left for a program
            return False, "", "SyntaxError: invalid syntax"
        result: tuple[bool, str, str] = current("gem.tools.python_code_tool", "run_python")(
            code, self.sandbox_type, timeout=self.timeout
        )
        return result


#: Delimiters of a program.
_AROUND = (("<python>", "</python>"), ("```python", "```"), ("```\npython", "```"))


def _between(text: str, opening: str, closing: str) -> tuple[int, int, int] | None:
    """Return start and end of the content between two delimiters, and the end of the second one."""
    start = text.find(opening) + len(opening)
    end = text.find(closing, start) if start >= len(opening) else -1
    return (start, end, end + len(closing)) if end >= 0 else None


_FAILED = "[SearchTool Error:"


class SearchTool(search.SearchTool):
    """Asks a retrieval server; the results are in ``<information>``. ``_search`` may be replaced."""

    return_scores = True

    def _parse_action(self, action: str) -> tuple[str, str, bool]:
        """The query, the action up to its end, and whether there is one."""
        call = first_tagged(action, "search")
        return ("", "", False) if call is None else (call.content.strip(), action[: call.end], True)

    def _search(self, query: str) -> str:
        try:
            return self._passages2string(self._rows(query))
        except RollenvError:  # for the user to fix, not the agent
            raise
        except Exception as error:
            return f"{_FAILED} {type(error).__name__}: {str(error)[:300]}]"

    def _passages2string(self, result: Sequence[Mapping[str, Any]]) -> str:
        """The documents, each with its number and its first line as the title."""
        shown = ""
        for number, row in enumerate(result, 1):
            title, _, text = row["document"]["contents"].partition("\n")
            shown += f"Doc {number}(Title: {title}) {text}\n"
        return shown

    def execute_action(self, action: str) -> ToolResult:
        query, parsed, valid = self._parse_action(action)
        if not valid:
            return ToolResult(False, True, "", parsed)
        text = self._search(query)
        return ToolResult(True, _FAILED in text, f"\n\n<information>{text}</information>\n\n", parsed)

    def check(self) -> None:
        """Do nothing: GEM checks the server on the first call."""


class MCPTool(mcp.MCPTool):
    """The tools of MCP servers, with GEM's arguments.

    Args:
        delay_between_retries: accepted; a connection is tried again at once.

    Raises:
        UsageError: for a handler, or a configuration that cannot be read.
        NoServer: (a ``ValueError``) a server cannot be reached.
    """

    def __init__(
        self,
        config: str | Mapping[str, Any],
        auth: str | None = None,
        headers: Mapping[str, str] | None = None,
        log_handler: Any = None,
        progress_handler: Any = None,
        sampling_handler: Any = None,
        max_retries: int = 3,
        delay_between_retries: float = 1.0,
        execution_timeout: float = 30.0,
        validate_on_init: bool = True,
        num_workers: int = 1,
    ):
        if log_handler or progress_handler or sampling_handler:
            raise UsageError("rollenv's MCP tool takes no log_handler, progress_handler or sampling_handler")
        self.raw_config, self.delay_between_retries = config, delay_between_retries
        self.normalized_config = _normal(config, auth, headers)
        try:
            super().__init__(
                self.normalized_config,
                execution_timeout=execution_timeout,
                max_retries=max_retries,
                validate_on_init=validate_on_init,
                num_workers=num_workers,
            )
        except mcp.MCPError as error:
            raise NoServer(str(error)) from error

    @classmethod
    def from_url(
        cls, url: str, auth: str | None = None, headers: Mapping[str, str] | None = None, **kwargs: Any
    ) -> Self:
        """The server at a URL."""
        return cls(url, auth, headers, **kwargs)

    @classmethod
    def from_config_file(cls, config_path: str | Path, **kwargs: Any) -> Self:
        """The servers that a JSON file names."""
        with open(config_path, encoding="utf-8") as file:
            return cls(json.load(file), **kwargs)

    @classmethod
    def from_local_command(cls, server_params: Mapping[str, Any], name: str = "default", **kwargs: Any) -> Self:
        """A server that is started as a process: ``{"command": ..., "args": [...]}``."""
        return cls({"mcpServers": {name: dict(server_params)}}, **kwargs)

    @classmethod
    def from_multi_server(cls, servers: Mapping[str, Any], **kwargs: Any) -> Self:
        """Several servers: their URLs by name."""
        return cls({"mcpServers": {k: {"url": v} if isinstance(v, str) else v for k, v in servers.items()}}, **kwargs)

    def execute_action(self, action: str) -> ToolResult:
        """The answer in ``<tool_response>``. A call of a tool that no server has is not this tool's."""
        calls, _ = find_calls(action)
        if not calls:
            return ToolResult(False, True, "", "")
        call = calls[0]
        parsed = action[max(0, action.rfind("<tool_call>", 0, call.end)) : call.end]
        names = self.names()
        if not call.problem and call.name not in names:
            answer = f"Tool {call.name!r} not found. Available tools: {', '.join(names)}"
            return ToolResult(False, True, answer, parsed)
        failed, text = done = self.answer(call)
        text = call.problem or observed(text, done.images)[0]  # GEM's results are texts
        if failed:
            text = f"[Tool execution error: {text}]"
        return ToolResult(True, failed, f"\n<tool_response>\n{text}\n</tool_response>\n", parsed)

    def get_available_tools(self) -> list[dict[str, Any]]:
        """Name, description and parameters of each tool."""
        return [dict(schema["function"]) for schema in self.schemas()]

    def reconfigure(
        self, new_config: str | Mapping[str, Any], auth: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Use other servers from now on."""
        self.close()
        type(self).__init__(
            self, new_config, auth, headers, max_retries=self.max_retries, execution_timeout=self.execution_timeout
        )


class NoServer(RollenvError, ValueError):
    """An MCP server cannot be reached."""


def _normal(
    config: str | Mapping[str, Any], auth: str | None, headers: Mapping[str, str] | None
) -> str | Mapping[str, Any]:
    if not isinstance(config, str) or not (auth or headers):
        return config
    token = {"Authorization": f"Bearer {auth}"} if auth else {}
    return {"mcpServers": {"default": {"url": config, "headers": {**(headers or {}), **token}}}}
