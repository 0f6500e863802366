"""Validation of the functions that an environment offers in ``info["tools"]``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from rollenv.agents.base import AgentFailed


class _Parameters(BaseModel):
    """The known part of a function's parameters; there may be more."""

    model_config = ConfigDict(strict=True)

    properties: dict[str, dict[str, Any]] = {}
    required: list[str] = []


class _Described(BaseModel):
    model_config = ConfigDict(strict=True)

    name: str
    description: str | None = None
    parameters: _Parameters = _Parameters()


class _Schema(BaseModel):
    function: _Described


_SCHEMAS = TypeAdapter(list[_Schema])


def offered_tools(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the functions that an environment offers (``info["tools"]``); none if there is no such key."""
    schemas = info.get("tools")
    if schemas is None:
        return []
    try:
        _SCHEMAS.validate_python(schemas)
        json.dumps(schemas, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise AgentFailed(
            f'info["tools"] is not a list of functions in the form of OpenAI\'s `tools`: {str(error)[:300]}'
        ) from error
    return list(schemas)
