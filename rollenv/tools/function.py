"""Python functions as tools: their schema comes from type hints and docstring."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from rollenv.core import UsageError
from rollenv.tools.base import NOT_CALLED, BaseTool, ToolResult
from rollenv.tools.calls import ToolCall, first_call


class CallableTool(BaseTool):
    """Base of tools that are called by name, with JSON arguments (see :func:`rollenv.tools.calls.first_call`)."""

    def schemas(self) -> list[dict[str, Any]]:
        """The functions in the form of OpenAI's ``tools`` parameter."""
        raise NotImplementedError(f"{type(self).__name__} has no schemas")

    def call(self, call: ToolCall) -> tuple[bool, str]:
        """Carry out a well-formed call of a known function; return (failed, text for the agent)."""
        raise NotImplementedError(f"{type(self).__name__} calls nothing")

    def names(self) -> list[str]:
        """Return the names that can be called."""
        return [schema["function"]["name"] for schema in self.schemas()]

    def instruction_string(self) -> str:
        lines = "\n".join(json.dumps(schema["function"]) for schema in self.schemas())
        example = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'
        return f"To call one of these functions, write {example}; the result is shown to you.\n{lines}"

    def execute_action(self, action: str) -> ToolResult:
        call = first_call(action)
        if call is None or (not call.problem and call.name not in self.names()):
            return NOT_CALLED
        parsed = action[: call.end]
        if call.problem:
            return ToolResult(True, True, f"The tool call failed: {call.problem}.", parsed)
        failed, text = self.call(call)
        return ToolResult(True, failed, text, parsed)


class FunctionTool(CallableTool):
    """Lets an agent call your Python functions.

    Args:
        functions: with type hints; the first paragraph of the docstring says what each does.

    Raises:
        UsageError: for a function whose arguments cannot be described.
    """

    tool_type = "function"

    def __init__(self, *functions: Callable[..., Any], num_workers: int = 1):
        super().__init__(num_workers)
        self._functions = {f.__name__: f for f in functions}
        self._models = {name: argument_model(f) for name, f in self._functions.items()}
        self._schemas = [function_schema(f, self._models[name]) for name, f in self._functions.items()]

    def schemas(self) -> list[dict[str, Any]]:
        return self._schemas

    def call(self, call: ToolCall) -> tuple[bool, str]:
        try:
            arguments = self._models[call.name].model_validate(call.arguments)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            return True, f"The call of {call.name} failed: {problems}."
        try:
            result = self._functions[call.name](**{k: getattr(arguments, k) for k in type(arguments).model_fields})
        except Exception as error:
            return True, f"The call of {call.name} failed: {type(error).__name__}: {str(error)[:1000]}"
        return False, result if isinstance(result, str) else json.dumps(result, default=repr)


def argument_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A model that checks the arguments of a function; lines under ``Args:`` in its docstring describe them.

    Args:
        function: with type hints. A first parameter ``self`` is left out.

    Raises:
        UsageError: an argument has no name that a call could use, or its type hint cannot be resolved.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UsageError(f"the type hints of {function.__name__} cannot be resolved: {error}") from error
    about = dict(_ARGUMENT.findall((inspect.getdoc(function) or "").partition("Args:\n")[2]))
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"{function.__name__} cannot be a tool: {parameter} has no name that a call could use")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints.get(name, Any), Field(default, description=about.get(name)))
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)


_ARGUMENT = re.compile(r"^ +(\w+): (.+)$", re.MULTILINE)


def function_schema(function: Callable[..., Any], model: type[BaseModel]) -> dict[str, Any]:
    """Describe a function in the form of OpenAI's ``tools`` parameter.

    Args:
        function: with a docstring, whose first paragraph says what it does.
    """
    parameters = {k: v for k, v in model.model_json_schema().items() if k != "title"}
    for about_one in parameters.get("properties", {}).values():
        about_one.pop("title", None)
    about = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
    return {
        "type": "function",
        "function": {"name": function.__name__, "description": about, "parameters": parameters},
    }
