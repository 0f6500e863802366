"""Tool calls in model output, and the instructions for them in prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from rollenv.core.parsing import opening_thought
from rollenv.core.tools.call_readers import (
    MOST_CALLS,
    ToolCall,
    first_mark,
    json_calls,
    marked_calls,
    python_calls,
    unmarked_calls,
)

#: Formats of calls: Hermes' elements, JSON alone, Python calls in brackets, or by the endpoint's own means.
CallForm = Literal["hermes", "json", "python", "native"]
CALL_FORMS: tuple[CallForm, ...] = get_args(CallForm)


def find_calls(
    action: str, form: CallForm = "hermes", schemas: Sequence[Mapping[str, Any]] = ()
) -> tuple[list[ToolCall], str]:
    """Find all calls in an action, in order, and the text around them.

    Calls with the marks of a model family are read in every form. JSON without marks is read in the form ``json``, and
    in the others where it calls one of the ``schemas``; Python calls without marks in the form ``python``. A thought at
    the beginning holds no calls. A malformed call has a ``problem``; so has what is beyond :data:`MOST_CALLS` calls,
    and a call with anything beside its name and arguments: no call is carried out without what it was given.

    Args:
        schemas: the functions, in the form of OpenAI's ``tools`` parameter; texts in elements get the types they name.
    """
    offset = opening_thought(action)
    text = action[offset:]
    functions = {schema["function"]["name"]: schema["function"].get("parameters") or {} for schema in schemas}
    calls, around, start = python_calls(text, functions) if form == "python" else ([], text, len(text))
    if not calls:
        calls, around, start = unmarked_calls(text, functions)
    if not calls:
        calls, around, start = json_calls(text, form == "json", functions)
    if (mark := first_mark(text)) < start:  # the call without a mark is inside one with a mark
        calls, around = marked_calls(text, functions)
    elif mark < len(text):
        calls += [replace(call, end=len(text)) for call in marked_calls(around, functions)[0]]
    if len(calls) > MOST_CALLS:
        calls = [*calls[:MOST_CALLS], ToolCall("", {}, calls[-1].end, f"an action has at most {MOST_CALLS} calls")]
    if offset:
        calls = [replace(call, end=call.end + offset) for call in calls]
    return calls, around.strip()


#: Keywords of JSON Schema by which arguments may be allowed that ``properties`` does not list.
_ALLOWING = {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"}
_ALLOWING |= {"dependencies", "patternProperties", "unevaluatedProperties"}


def unknown_argument(call: ToolCall, parameters: Mapping[str, Any]) -> str:
    """Return the reason to refuse a call with an argument that no parameter can be; empty if there is none.

    Only a plain list of parameters is decided here; a schema that says more is left to the function.
    """
    known = parameters.get("properties", {})
    extra = parameters.get("additionalProperties", "properties" not in parameters)
    if extra is not False or not _ALLOWING.isdisjoint(parameters):
        return ""
    others = [name for name in call.arguments if name not in known]
    if others:
        return f"{call.name} has no argument {others[0][:100]!r}; it has {', '.join(known) or 'none'}"
    return ""


def write_calls(calls: Sequence[tuple[str, Mapping[str, Any]]], form: CallForm = "hermes") -> str:
    """Render calls as text that :func:`find_calls` reads.

    Args:
        form: format of the calls; ``native`` is rendered as Hermes' elements.
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
    """Render the JSON of a call as an element ``<tool_call>``; closing tags in its strings are escaped."""
    return "<tool_call>" + call.replace("</", "<\\/") + "</tool_call>"


_HOW: Mapping[CallForm, str] = {
    "hermes": 'To call a function, write <tool_call>{"name": "...", "arguments": {...}}</tool_call>, several for '
    "several calls.",
    "json": 'To call functions, answer with nothing but JSON: {"name": "...", "arguments": {...}}, or a list of these '
    "for several calls.",
    "python": "To call functions, answer with nothing but [name(argument=value, ...)], several separated by commas.",
}


def call_instructions(schemas: Sequence[Mapping[str, Any]], form: CallForm) -> str:
    """Return the part of a prompt about functions in the form of OpenAI's ``tools``; empty for ``native``."""
    if form == "native" or not schemas:
        return ""
    lines = "\n".join(json.dumps(schema["function"], ensure_ascii=False) for schema in schemas)
    return f"{_HOW[form]} The results are shown to you. The functions:\n{lines}"
