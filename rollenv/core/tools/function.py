"""Python functions as tools: their schema comes from type hints and docstring."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from rollenv.core.errors import UsageError, did_you_mean
from rollenv.core.parsing import well_formed
from rollenv.core.picture_forms import bound, is_picture, observed
from rollenv.core.pictures import MARK, Picture, picture
from rollenv.core.tools.base import NOT_CALLED, BaseTool, ToolResult
from rollenv.core.tools.call_readers import ToolCall
from rollenv.core.tools.calls import find_calls


class CallResult(tuple[bool, str]):
    """The result of a call by name: (failed, text for the agent).

    Attributes:
        images: pictures, which have bound marks in the text (:mod:`rollenv.core.picture_forms`).
    """

    images: Sequence[Picture]

    def __new__(cls, failed: bool, text: str, images: Sequence[Picture] = ()) -> CallResult:
        made = super().__new__(cls, (failed, text))
        made.images = images
        return made


class CallableTool(BaseTool):
    """Base of tools that are called by name, with JSON arguments (see :func:`rollenv.core.tools.calls.find_calls`)."""

    def schemas(self) -> list[dict[str, Any]]:
        """The functions in the form of OpenAI's ``tools`` parameter."""
        raise NotImplementedError(f"{type(self).__name__} has no schemas")

    def call(self, call: ToolCall) -> tuple[bool, str]:
        """Carry out a well-formed call of a known function; return (failed, text for the agent), or a CallResult."""
        raise NotImplementedError(f"{type(self).__name__} calls nothing")

    def names(self) -> list[str]:
        """Return the names that can be called."""
        return [schema["function"]["name"] for schema in self.schemas()]

    def instruction_string(self) -> str:
        lines = "\n".join(json.dumps(schema["function"], ensure_ascii=False) for schema in self.schemas())
        example = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'
        return f"To call one of these functions, write {example}; the result is shown to you.\n{lines}"

    def execute_action(self, action: str) -> ToolResult:
        """Answer all calls in the action; :data:`NOT_CALLED` if the first is of another function, or there is none."""
        schemas = self.schemas()
        calls = find_calls(action, schemas=schemas)[0]
        if not calls or (not calls[0].problem and calls[0].name not in {s["function"]["name"] for s in schemas}):
            return NOT_CALLED
        done = [self.answer(call) for call in calls]
        images = [image for result in done for image in result.images]
        text, _ = observed(together(calls, [text for _, text in done]), images)
        return ToolResult(True, any(failed for failed, _ in done), text, action[: calls[-1].end])

    def answer(self, call: ToolCall) -> CallResult:
        """Carry out a call, well-formed or not."""
        if call.problem:
            return CallResult(True, f"The tool call failed: {call.problem}.")
        if call.name not in (names := self.names()):
            return CallResult(True, unknown_tool(call.name, names))
        done = self.call(call)
        return done if isinstance(done, CallResult) else CallResult(*done)


def unknown_tool(name: str, names: Sequence[str]) -> str:
    """Return the answer to a call of a tool that does not exist."""
    hint = did_you_mean(name[:100], names, f"there are {', '.join(names)}.")
    return f"There is no tool {name[:100]!r}; {hint}"


def together(calls: Sequence[ToolCall], texts: Sequence[str]) -> str:
    """Join the answers of several calls, each below its name; one answer stays as it is."""
    if len(calls) == 1:
        return texts[0]
    return "\n".join(f"{i}. {call.name}:\n{text}" for i, (call, text) in enumerate(zip(calls, texts, strict=True), 1))


#: Maximum characters of a call's result.
MOST_TEXT = 20_000


def text_of(result: Any) -> str:
    """Return the result of a call as text for the agent: JSON unless it is a string, truncated if too long."""
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=repr)
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]}... (cut: {len(text)} characters)"
    return well_formed(text)


def shown_result(result: Any) -> tuple[str, list[Picture]]:
    """Return the result of a call as text with bound marks, and its pictures.

    Args:
        result: what :func:`text_of` takes, a picture (:func:`~rollenv.core.picture_forms.is_picture`), or a list of
            both, which are shown one below the other.
    """
    mixed = isinstance(result, list | tuple) and any(map(is_picture, result))
    shown = [picture(part) if is_picture(part) else text_of(part) for part in (result if mixed else [result])]
    images = [part for part in shown if isinstance(part, Picture)]
    return "\n".join(part if isinstance(part, str) else bound(MARK, [part]) for part in shown), images


class FunctionTool(CallableTool):
    """Lets an agent call your Python functions, which may return pictures (see :func:`shown_result`).

    Args:
        functions: with type hints; the first paragraph of the docstring says what each does.
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
            return CallResult(False, *shown_result(_run_async(result) if inspect.isawaitable(result) else result))
        except (Exception, SystemExit) as error:  # a tool that calls sys.exit() ends its call, not the episode
            return True, f"The call of {call.name} failed: {type(error).__name__}: {str(error)[:1000]}"


def _run_async(result: Awaitable[Any]) -> Any:
    """Wait for the result of an async function in a new thread, as this one may run an event loop."""

    async def wait() -> Any:
        return await result

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wait()).result()


def argument_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A model that checks the arguments of a function; lines under ``Args:`` in its docstring describe them.

    Args:
        function: with type hints. A first parameter ``self`` is left out.
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
            raise UsageError(f"{function.__name__} cannot be a tool: a call cannot pass {parameter} by name")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints.get(name, Any), Field(default, description=about.get(name)))
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)


_ARGUMENT = re.compile(r"^ +(\w+)(?: ?\([^\n]*?\))?: (.+)$", re.MULTILINE)


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
