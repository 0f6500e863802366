"""Tool calls as models write them: Hermes' ``<tool_call>`` with JSON, GEM's with elements, OpenAI's function calls."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rollenv.parsing import first_tagged


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call found in an action."""

    name: str
    arguments: dict[str, Any]
    end: int
    """Where it ends in the action."""
    problem: str = ""
    """What is wrong with it; empty if it can be carried out."""


def first_call(action: str) -> ToolCall | None:
    """The first call in an action, or None. A malformed call is a call whose ``problem`` says what is wrong."""
    if "<tool_call>" in action:
        element = first_tagged(action, "tool_call")
        if element is None:
            return ToolCall("", {}, len(action), "the call is not closed: end it with </tool_call>")
        if gem := _gem(element.content.strip()):
            return _call(*gem, element.end)
        return _from_json(element.content, element.end)
    stripped = action.strip()
    if stripped.startswith("{") and any(f'"{key}"' in stripped for key in ("tool_calls", "function_call")):
        return _from_message(stripped, len(action))
    return None


def _gem(text: str) -> tuple[str, str] | None:
    """GEM: ``<tool_name>...</tool_name>``, and ``<arguments>{...}</arguments>`` where there are any."""
    name = first_tagged(text, "tool_name")
    if name is None or not text.startswith("<tool_name>"):
        return None
    rest = text[name.end :].strip()
    arguments = first_tagged(rest, "arguments") if rest else None
    if rest and (arguments is None or not rest.startswith("<arguments>") or arguments.end != len(rest)):
        return None
    return name.content.strip(), arguments.content if arguments else "{}"


def _from_json(text: str, end: int) -> ToolCall:
    """Hermes: ``{"name": ..., "arguments": {...}}``."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return ToolCall("", {}, end, f"the call is not valid JSON: {str(error)[:200]}")
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return ToolCall("", {}, end, 'the call is not of the form {"name": "...", "arguments": {...}}')
    return _call(data["name"], data.get("arguments", data.get("parameters", {})), end)


def _from_message(text: str, end: int) -> ToolCall | None:
    """OpenAI: an assistant message with ``tool_calls``, or the older ``function_call``."""
    try:
        message = json.loads(text)
        calls = message.get("tool_calls")
        function = calls[0]["function"] if calls else message["function_call"]
        return _call(str(function["name"]), function.get("arguments", "{}"), end)
    except (ValueError, RecursionError) as error:
        return ToolCall("", {}, end, f"the message is not valid JSON: {str(error)[:200]}")
    except (AttributeError, KeyError, IndexError, TypeError):
        return ToolCall("", {}, end, "the message has no function with a name in its tool_calls")


def _call(name: str, arguments: Any, end: int) -> ToolCall:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return ToolCall(name, {}, end, f"the arguments are not valid JSON: {str(error)[:200]}")
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, end, f"the arguments are a JSON object, not {type(arguments).__name__}")
    return ToolCall(name, arguments, end)


#: How calls are written: Hermes' elements, JSON alone, Python calls in brackets, or by the endpoint's own means.
CallForm = Literal["hermes", "json", "python", "native"]
CALL_FORMS: tuple[CallForm, ...] = get_args(CallForm)

#: The most calls of one action that are read.
MOST_CALLS = 32


def find_calls(action: str, form: CallForm = "hermes") -> tuple[list[ToolCall], str]:
    """All calls in an action, in order, and the text around them. A malformed call has a ``problem``.

    Elements ``<tool_call>`` are read in every form. What is beyond :data:`MOST_CALLS` calls is one malformed call.

    Args:
        form: how calls are written besides.

    Returns:
        The calls, and the text without them.
    """
    calls, around = _OWN_WAY[form](action) if form in _OWN_WAY else ([], "")
    if "<tool_call>" in action and not (calls and not any(call.problem for call in calls)):
        return _elements(action)
    if form in _OWN_WAY:
        return calls, around
    call = first_call(action)
    return ([call], "") if call else ([], action.strip())


def _elements(action: str) -> tuple[list[ToolCall], str]:
    calls: list[ToolCall] = []
    around, at = [], 0
    while (start := action.find("<tool_call>", at)) >= 0:
        around.append(action[at:start])
        if len(calls) == MOST_CALLS:
            calls.append(ToolCall("", {}, len(action), f"an action has at most {MOST_CALLS} calls"))
            at = len(action)
            break
        end = action.find("</tool_call>", start)
        call = first_call(action[start : len(action) if end < 0 else end + len("</tool_call>")])
        if call is not None:
            calls.append(call)
        at = len(action) if end < 0 else end + len("</tool_call>")
    return calls, "".join([*around, action[at:]]).strip()


_FENCED = re.compile(r"\A\s*```[A-Za-z]{0,10}\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


def _json_alone(action: str) -> tuple[list[ToolCall], str]:
    fenced = _FENCED.match(action) if len(action) < 1_000_000 else None
    text = (fenced[1] if fenced else action).strip()
    if not text.startswith(("{", "[")):
        return [], action.strip()
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        if '"name"' not in text:
            return [], action.strip()
        return [ToolCall("", {}, len(action), f"the call is not valid JSON: {str(error)[:200]}")], ""
    found = data if isinstance(data, list) else [data]
    if not found or not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in found):
        return [], action.strip()
    calls = [_call(each["name"], each.get("arguments", each.get("parameters", {})), len(action)) for each in found]
    return _at_most(calls), ""


#: Stands for the file of a parsed action, so that Python does not warn of what a model wrote.
SOURCE = "<action>"
for _category in (SyntaxWarning, DeprecationWarning):
    warnings.filterwarnings("ignore", category=_category, module=re.escape(SOURCE))


def _python(action: str) -> tuple[list[ToolCall], str]:
    """``[f(a=1), g(b="x")]``, or one call without brackets; arguments by name, and literals only."""
    fenced = _FENCED.match(action) if len(action) < 1_000_000 else None
    text = (fenced[1] if fenced else action).strip()
    if len(text) > 200_000 or "(" not in text or "\x00" in text:
        return [], action.strip()
    try:
        tree = ast.parse(text, SOURCE, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], action.strip()
    found = [each for each in (tree.elts if isinstance(tree, ast.List) else [tree]) if isinstance(each, ast.Call)]
    if not found or (isinstance(tree, ast.List) and len(found) < len(tree.elts)):
        return [], action.strip()
    return _at_most([_from_ast(each, len(action)) for each in found]), ""


def _from_ast(call: ast.Call, end: int) -> ToolCall:
    try:
        name = ast.unparse(call.func)
    except RecursionError:
        return ToolCall("", {}, end, "the name of the function is nested too deeply")
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        return ToolCall(name, {}, end, "arguments are given by name")
    try:
        return ToolCall(name, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}, end)
    except (ValueError, TypeError, RecursionError, SyntaxError, MemoryError):
        return ToolCall(name, {}, end, "arguments are literals")


_OWN_WAY = {"json": _json_alone, "python": _python}


def _at_most(calls: list[ToolCall]) -> list[ToolCall]:
    if len(calls) <= MOST_CALLS:
        return calls
    return [*calls[:MOST_CALLS], ToolCall("", {}, calls[-1].end, f"an action has at most {MOST_CALLS} calls")]


def write_calls(calls: Sequence[tuple[str, Mapping[str, Any]]], form: CallForm = "hermes") -> str:
    """Calls as text that :func:`find_calls` reads.

    Args:
        form: how to write them; ``native`` is written as Hermes' elements.
    """
    if form == "json":
        data = [{"name": name, "arguments": dict(arguments)} for name, arguments in calls]
        return json.dumps(data[0] if len(data) == 1 else data, ensure_ascii=False)
    if form == "python":
        each = [f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in calls]
        return f"[{', '.join(each)}]"
    return "\n".join(
        as_element(json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False))
        for name, arguments in calls
    )


def as_element(call: str) -> str:
    """The JSON of a call as an element ``<tool_call>``, which no text in it closes."""
    return "<tool_call>" + call.replace("</", "<\\/") + "</tool_call>"


_HOW: Mapping[CallForm, str] = {
    "hermes": 'To call a function, write <tool_call>{"name": "...", "arguments": {...}}</tool_call>, several for '
    "several calls.",
    "json": 'To call functions, answer with nothing but JSON: {"name": "...", "arguments": {...}}, or a list of these '
    "for several calls.",
    "python": "To call functions, answer with nothing but [name(argument=value, ...)], several separated by commas.",
}


def call_instructions(schemas: Sequence[Mapping[str, Any]], form: CallForm) -> str:
    """Return the part of a prompt about functions and how to call them; empty for ``native``.

    Args:
        schemas: in the form of OpenAI's ``tools`` parameter.
    """
    if form == "native" or not schemas:
        return ""
    lines = "\n".join(json.dumps(schema["function"], ensure_ascii=False) for schema in schemas)
    return f"{_HOW[form]} The results are shown to you. The functions:\n{lines}"
