"""A page with every recipe key, from the models that validate them."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Collection, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rollenv.core.plugins import load_all
from rollenv.plugins.launch.base import BaseLauncher
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.launch import LAUNCHERS
from rollenv.trainers.config.section import union_of

PAGE = "recipes/keys.md"
#: Suffix of the title of list items, whose sections are described elsewhere.
EACH = ", each"


def page() -> str:
    """Make the page: a table for each section, or for each value of its tag."""
    rows = [
        "# All keys",
        "",
        "Every key of a recipe, with its default. On the command line: `rollenv train sokoban optimizer.lr=1e-5`.",
        "A key that is unknown, or does nothing under the other settings, is an error.",
        "",
    ]
    sections = [*_section("", TrainConfig)]
    sections += _section("launch", BaseLauncher)
    for kind, launcher in load_all(LAUNCHERS).items():
        sections += _section("launch", launcher, f"launch with kind = {kind}", BaseLauncher.model_fields)
    return "\n".join([*rows, *sections]) + "\n"


def _section(path: str, model: type[BaseModel], title: str = "", known: Collection[str] = ()) -> Iterator[str]:
    """Yield the tables of a section and its subsections, without keys that are known."""
    if path:
        yield from (f"## {title or path}", "", _text(model.__doc__), "")
    below = [] if title.endswith(EACH) else list(_below(path, model))
    inner = {key for key, _, _ in below}
    plain = [name for name in model.model_fields if _join(path, name) not in inner and name not in known]
    if plain:
        yield from ("| key | values | default | meaning |", "|---|---|---|---|")
        for name in plain:
            field = model.model_fields[name]
            default = field.get_default(call_default_factory=True)
            yield (
                f"| `{_join(path, name)}` | {_cell(_type(field.annotation))} | {_cell(_default(default))} "
                f"| {_cell(_text(field.description))} |"
            )
        yield ""
    for key, name, section in below:
        yield from _section(key, section, name)


def _below(path: str, model: type[BaseModel]) -> Iterator[tuple[str, str, type[BaseModel]]]:
    """Yield key, title and model of each subsection. A model that several tag values share comes once."""
    for name, field in model.model_fields.items():
        key = _join(path, name)
        if union := union_of(key):
            for variant in dict.fromkeys(union.variants.values()):
                values = [value for value, known in union.variants.items() if known is variant]
                yield key, f"{key} with {union.tag} = {' or '.join(values)}", variant
            for value, variant in load_all(union.group).items() if union.group else ():
                yield key, f"{key} with {union.tag} = {value}", variant
            if union.open:
                yield key, f"{key} with {union.tag} = module:function", union.open
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield key, "", field.annotation
        elif parts := [
            a for a in typing.get_args(field.annotation) if isinstance(a, type) and issubclass(a, BaseModel)
        ]:
            yield key, f"{key}{EACH}", parts[0]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _type(kind: Any) -> str:
    """Describe the possible values of a key."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "table"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(one) for one in arguments if one is not type(None)))
    names = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "table", list: "list"}
    if origin in (list, tuple) and arguments:
        return f"list of {_type(arguments[0])}"
    return names.get(origin or kind, getattr(kind, "__name__", str(kind)))


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "to be given"
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return "" if value is None else f"`{json.dumps(value)}`"


def _text(text: str | None) -> str:
    return re.sub(r"``([^`]*)``", r"`\1`", " ".join((text or "").split()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
