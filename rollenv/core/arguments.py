"""Conversion of constructor arguments: texts become the argument's type, other types are refused."""

from __future__ import annotations

import datetime
import functools
import inspect
import json
import os
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from rollenv.core.errors import UsageError

#: Words for None on command lines and in recipes; pydantic has its own for true and false.
NOTHING = ("none", "null")
_DATES = (datetime.date, datetime.datetime, datetime.time)
_PLAIN = (str, int, float, bool, type(None), list, tuple, dict, Path)


def value_of(text: str) -> Any:
    """Parse a setting as TOML; anything else stays text, with ~ for the home folder."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return os.path.expanduser(text)


def toml_value(value: Any) -> str:
    """Write a value, or a section of settings, as TOML on one line; None, which TOML lacks, is left out."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if isinstance(value, dict):
        given = (f"{json.dumps(str(key))} = {toml_value(one)}" for key, one in value.items() if one is not None)
        return "{ " + ", ".join(given) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def checked_arguments(env_id: str, factory: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arguments to the types of a constructor's parameters; only plain data are checked.

    Raises:
        UsageError: a value has another type than its argument.
    """
    return {name: _checked(env_id, name, _types(factory).get(name), value) for name, value in kwargs.items()}


def _checked(env_id: str, name: str, hint: Any, value: Any) -> Any:
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    checkable = type(value) in (*_PLAIN, *_DATES) and hint is not None and all(map(_is_plain, members))
    if not checkable or type(value) in members:
        return value
    texts = str in members or Path in members
    given = value_of(value) if isinstance(value, str) and not texts else value
    if given is value and isinstance(value, str) and type(None) in members and value.lower() in NOTHING and not texts:
        return None
    as_number = isinstance(given, bool) and bool not in members and not any(True in get_args(each) for each in members)
    try:
        if as_number:
            raise ValueError("true and false are not numbers")
        converted = _adapter(hint).validate_python(given)
    except ValueError as error:
        quoted = f"; write it in quotes, as in {name}='\"{value}\"'" if texts else ""
        wanted = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
        raise UsageError(f"{env_id}: {name} takes {wanted}, not {value!r}{quoted}") from error
    return converted if isinstance(value, str) else value


def _is_plain(hint: Any) -> bool:
    """Return whether a type can be checked without looking into objects or using up iterators."""
    origin = get_origin(hint) or hint
    return origin is Literal or (
        origin in _PLAIN and all(_is_plain(each) or each is Ellipsis for each in get_args(hint))
    )


@functools.cache
def _adapter(hint: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(hint)


@functools.lru_cache(maxsize=1024)
def _types(factory: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of a constructor's arguments, including those that it passes on to its base classes."""
    found: dict[str, Any] = {}
    for each in factory.__mro__ if isinstance(factory, type) else (factory,):
        constructor = vars(each).get("__init__") if isinstance(each, type) else each
        if constructor is None:
            continue
        try:
            hints, parameters = typing.get_type_hints(constructor), inspect.signature(constructor).parameters
        except (NameError, TypeError, ValueError, AttributeError):  # a type that is imported for checkers only
            break
        found = {**hints, **found}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            break
    return found
