"""Shared parts of dialects: arguments of calls as objects, schemas of answers and of parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rollenv.agents.gateway.dialects.fields import compact, field, readable
from rollenv.agents.gateway.messages import FunctionCall, GatewayError

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
TEXTS, NUMBERS = {"type": "array", "items": TEXT}, {"type": "array", "items": NUMBER}
#: Claude Code's key for arguments that are not JSON, which it reports to the model.
_UNPARSED = "__unparsedToolInput"


def one_of(*names: str) -> dict[str, Any]:
    """Return the schema of a choice."""
    return {**TEXT, "enum": list(names)}


def as_object(call: FunctionCall) -> dict[str, Any]:
    """Return a call's arguments as an object, for dialects that require one.

    Other arguments are stored under Claude Code's own key. Unchanged, Anthropic's Python SDK would silently convert an
    incomplete object to ``{}``, and raise an exception for anything else, which ends the episode.
    """
    try:
        return readable(json.loads(call.arguments or "{}"))
    except (GatewayError, ValueError, RecursionError):
        return {_UNPARSED: {"raw": call.arguments, "len": len(call.arguments)}}


def arguments(of: Mapping[str, Any], key: str, where: str) -> str:
    """Return the arguments before :func:`as_object`."""
    value = field(of, key, dict, where) or {}
    unparsed = value.get(_UNPARSED)
    if isinstance(unparsed, dict) and isinstance(unparsed.get("raw"), str):
        return str(unparsed["raw"])
    return compact(value)


def json_format(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    """Return the ``response_format`` for an object that follows a schema."""
    return {"type": "json_schema", "json_schema": {"name": name or "answer", "schema": schema, **more}}
