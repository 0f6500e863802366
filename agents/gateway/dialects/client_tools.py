"""Tools that clients run themselves but name by a type, without a JSON schema: offered to the model as functions.

OpenAI's have calls of their own form.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from rollenv.agents.gateway.dialects.fields import field, readable, required, text
from rollenv.agents.gateway.messages import FunctionCall, GatewayError

logger = logging.getLogger(__name__)

_left_out: set[str] = set()


def leave_out(kind: str) -> list[dict[str, Any]]:
    """Warn once that tools of a type are not offered."""
    kind = kind[:60]
    if kind not in _left_out and len(_left_out) < 50:  # the client chooses the types
        _left_out.add(kind)
        logger.warning("tools of type %r are not offered to the model: they are no functions of the client", kind)
    return []


def as_function(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool as a function; "?" marks a parameter that may be absent."""
    schema = {
        "type": "object",
        "properties": {key.rstrip("?"): one for key, one in parameters.items()},
        "required": [key for key in parameters if not key.endswith("?")],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def custom(of: Mapping[str, Any], where: str, namespace: str = "") -> list[dict[str, Any]]:
    """Return the function for a tool that takes a text, which may have to fit a grammar; none for one of a server."""
    if of.get("type") != "custom":
        return leave_out(str(of.get("type")))
    of = field(of, "custom", dict, where) or of  # chat completions have an object inside
    description, form = text(of, "description", where), field(of, "format", dict, where) or {}
    grammar = field(form, "grammar", dict, where) or form
    if rules := text(grammar, "definition", where):
        syntax = text(grammar, "syntax", where)
        description = f"{description}\n\nThe input must fit this {syntax} grammar:\n{rules}".lstrip()
    tool = {**as_function(required(of, "name", where), description, {"input": {"type": "string"}}), "form": "custom"}
    return [{**tool, "namespace": namespace} if namespace else tool]


def form_of(call: FunctionCall, tools: Iterable[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Return the form of a call, and its arguments; "" for functions and for arguments that do not fit the form.

    A client reports the call of a function that it does not have to the model, as it does with arguments that are not
    JSON.
    """
    forms = (tool for tool in tools if "form" in tool and tool["function"]["name"] == call.name)
    tool = next((tool for tool in forms if tool.get("namespace", "") == call.namespace), None)
    if tool is not None:
        with contextlib.suppress(GatewayError, ValueError, RecursionError):
            arguments = readable(json.loads(call.arguments))
            fits = _fits(arguments, tool["function"]["parameters"])
            if fits and ("diff" in arguments or arguments.get("type") not in ("create_file", "update_file")):
                return tool["form"], arguments
    return "", {}


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a value fits the schema of such a tool."""
    match schema["type"]:
        case "object":
            known, more = schema.get("properties", {}), schema.get("additionalProperties")
            return (
                isinstance(value, dict)
                and value.keys() >= set(schema.get("required", ()))
                and all((key in known or more) and _fits(one, known.get(key, more)) for key, one in value.items())
            )
        case "array":
            return isinstance(value, list) and all(_fits(one, schema["items"]) for one in value)
        case "string":
            return isinstance(value, str) and value in schema.get("enum", [value])
    return isinstance(value, int) and not isinstance(value, bool)
