"""BFCL's files: tasks, answers and descriptions of functions."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.envs.tools.bfcl import need
from rollenv.tools.backend import Backend

Entry = Mapping[str, Any]

#: Types as the files name them, and as JSON schemas do; ``any`` has no type.
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": ""}
#: What is kept of a description besides its type.
_KEPT = ("description", "enum", "default", "minimum", "maximum", "required")


@functools.lru_cache(maxsize=32)
def _lines(path: Path) -> tuple[Entry, ...]:
    with open(path, encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines if line.strip())


def entries(category: str) -> tuple[Entry, ...]:
    """The tasks of a category.

    Raises:
        MissingData: the files are not there.
    """
    return _lines(need(category).found() / f"BFCL_v4_{category}.json")


@functools.lru_cache(maxsize=16)
def _answers(path: Path) -> Mapping[str, Sequence[Any]]:
    return {line["id"]: line["ground_truth"] for line in _lines(path)} if path.exists() else {}


def answers(category: str) -> Mapping[str, Sequence[Any]]:
    """The right answers by the id of the task; empty where no call is right.

    Raises:
        MissingData: the files are not there.
    """
    return _answers(need(category).found() / "possible_answer" / f"BFCL_v4_{category}.json")


def documented(category: str, names: Iterable[str]) -> list[Entry]:
    """The functions that files of descriptions hold; of those with one name the last."""
    folder = need(category).found() / "multi_turn_func_doc"
    found = {about["name"]: about for name in names for about in _lines(folder / f"{name}.json")}
    return list(found.values())


def plain_name(name: str) -> str:
    """A name that endpoints accept: they take no dots."""
    return name.replace(".", "_")


def schema(function: Entry) -> dict[str, Any]:
    """A description in the form of OpenAI's ``tools`` parameter."""
    about = {"name": plain_name(function["name"]), "description": function["description"]}
    return {"type": "function", "function": about | {"parameters": json_schema(function["parameters"])}}


def json_schema(about: Entry) -> dict[str, Any]:
    """The JSON schema of what the files describe with types such as ``dict`` and ``float``."""
    kept = {key: about[key] for key in _KEPT if key in about}
    kind = _TYPES.get(about.get("type", ""), about.get("type", ""))
    found = ({"type": kind} if kind else {}) | kept
    if "properties" in about:
        found["properties"] = {name: json_schema(each) for name, each in about["properties"].items()}
    if isinstance(about.get("items"), Mapping):
        found["items"] = json_schema(about["items"])
    return found


class Described(Backend):
    """A world whose functions are described by data.

    Args:
        schemas: in the form of OpenAI's ``tools`` parameter; never changed.
    """

    def __init__(self, schemas: Sequence[Mapping[str, Any]], state: dict[str, Any] | None = None):
        super().__init__(state)
        self._schemas = schemas

    def schemas(self, names: Collection[str] | None = None) -> list[dict[str, Any]]:
        return [dict(each) for each in self._schemas if names is None or each["function"]["name"] in names]
