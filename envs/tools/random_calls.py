"""Arguments that fit a schema, for random calls."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

_WORDS = ("alpha", "north", "report", "team", "blue", "weekly", "draft", "2023-11-30", "1", "open")


def random_arguments(schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Arguments that fit a schema: all that are required, some of the others.

    Args:
        schema: of an object, as in a function's ``parameters``.
    """
    required = set(schema.get("required", ()))
    properties = schema.get("properties", {})
    return {
        name: _random_value(about, rng, schema.get("$defs", {}))
        for name, about in properties.items()
        if name in required or rng.random() < 0.3
    }


def _random_value(about: Mapping[str, Any], rng: random.Random, defs: Mapping[str, Any], depth: int = 0) -> Any:
    if "$ref" in about:
        about = defs.get(str(about["$ref"]).rpartition("/")[2], {})
    if "enum" in about:
        return rng.choice(list(about["enum"]))
    for key in ("anyOf", "oneOf"):
        if key in about:
            return _random_value(rng.choice(list(about[key])), rng, defs, depth + 1)
    kind = about.get("type")
    if kind == "integer":
        return rng.randint(int(about.get("minimum", 0)), int(about.get("maximum", 100)))
    if kind == "number":
        return rng.randint(0, 1000) / 10
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    if kind == "array" and depth < 4:
        return [_random_value(about.get("items", {}), rng, defs, depth + 1) for _ in range(rng.randint(1, 2))]
    if kind == "object" and depth < 4:
        return random_arguments({**about, "$defs": defs}, rng)
    return rng.choice(_WORDS)
