"""Arguments that are written as texts, and get the types of a function's schema."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from rollenv.core.tools.call_readers import JSON


def add(arguments: dict[str, str], name: str, value: str) -> None:
    """Add an argument.

    Raises:
        ValueError: it is there already.
    """
    if name in arguments:
        raise ValueError(f"the argument {name[:100]!r} is given twice")
    arguments[name] = value.removeprefix("\n").removesuffix("\n")


def convert_types(arguments: Mapping[str, str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Convert strings to the types of a schema: parameters that are no strings are parsed as JSON if possible."""
    typed: dict[str, Any] = dict(arguments)
    properties = _properties(parameters, parameters)
    for name, value in arguments.items():
        about = properties.get(name)
        if not isinstance(about, Mapping):  # JSON Schema has also true and false
            continue
        types = [each.get("type") or each.get("$ref") for each in (about, *about.get("anyOf", ()))]
        if any(types) and "string" not in str(types):
            with contextlib.suppress(ValueError, RecursionError):  # the function reports the error
                typed[name] = JSON.decode(value)
    return typed


def _properties(schema: Any, root: Mapping[str, Any], depth: int = 3) -> dict[str, Any]:
    """Return what a JSON schema says of each argument, also in the schemas that it combines or refers to."""
    if not isinstance(schema, Mapping) or depth < 0:
        return {}
    parts = [part for key in ("allOf", "anyOf", "oneOf") for part in schema.get(key) or ()]
    parts += [schema.get("then"), schema.get("else")]
    if str(reference := schema.get("$ref")).startswith("#/"):
        referred: Any = root
        for step in str(reference)[2:].split("/"):
            referred = referred.get(step) if isinstance(referred, Mapping) else None
        parts.append(referred)
    found: dict[str, Any] = {}
    for part in parts:
        found |= _properties(part, root, depth - 1)
    return found | (schema.get("properties") or {})
