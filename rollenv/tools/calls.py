"""Tool calls as models write them: Hermes' ``<tool_call>`` with JSON, GEM's with elements, OpenAI's function calls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

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
