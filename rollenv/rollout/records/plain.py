"""Conversion of dataclasses to plain data and back, by their fields and annotations."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rollenv.core.errors import UsageError
from rollenv.core.pictures import Picture
from rollenv.rollout.records.pictures import PictureFiles
from rollenv.rollout.validation import LARGEST_NUMBER

T = TypeVar("T")


def hints(cls: Any) -> dict[str, Any]:
    """Resolve the annotation of every field of a dataclass."""
    return _hints(cls)


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    annotations = get_type_hints(cls)
    return {f.name: annotations[f.name] for f in fields(cls)}


def is_optional(hint: Any) -> bool:
    """Return whether the annotation allows None."""
    return get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)


def bare(hint: Any) -> Any:
    """Strip "or None" from an annotation."""
    if not is_optional(hint):
        return hint
    rest = [a for a in get_args(hint) if a is not type(None)]
    return rest[0] if len(rest) == 1 else Any


def to_plain(value: Any, files: PictureFiles | None = None) -> Any:
    """Convert dataclasses to dictionaries and tuples to lists; leave everything else unchanged.

    Args:
        files: gets the pictures, of which only the hashes are returned; by default they are returned whole.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {name: to_plain(getattr(value, name), files) for name in hints(type(value))}
    if isinstance(value, list | tuple):
        if not value or isinstance(value[0], int | float):  # long lists are of numbers
            return list(value)
        return [to_plain(v, files) for v in value]
    if isinstance(value, Picture):
        return value.as_json() if files is None else files.save(value)
    return value


def from_plain(cls: type[T], data: Any, where: str = "", files: PictureFiles | None = None) -> T:
    """Rebuild a dataclass from the output of :func:`to_plain`, JSON or Parquet.

    Keys that name a property of the class, such as a sum, are ignored.

    Args:
        cls: a dataclass; fields may be dataclasses, lists and tuples of them, and plain data.
        data: a mapping with its fields; those with a default may be absent.
        files: has the pictures of which the data name only the hashes.
    """
    where = where or cls.__name__
    if not isinstance(data, Mapping):
        raise UsageError(f"{where}: expected an object with the fields of {cls.__name__}, got {type(data).__name__}")
    known = hints(cls)
    for key in data:
        if key not in known and not isinstance(getattr(cls, key, None), property):
            raise UsageError(f"{where}: {cls.__name__} has no field {key!r}; it has {', '.join(known)}")
    values = {name: _value(hint, data[name], f"{where}.{name}", files) for name, hint in known.items() if name in data}
    needed = [f for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]  # type: ignore[arg-type]
    missing = [f.name for f in needed if f.name not in values]
    if missing:
        raise UsageError(f"{where}: the field {missing[0]!r} of {cls.__name__} is missing")
    return cls(**values)


def _value(hint: Any, value: Any, where: str, files: PictureFiles | None) -> Any:
    if value is None and is_optional(hint):
        return None
    hint = bare(hint)
    if hint is Picture:
        return (files or PictureFiles(Path())).load(value, where)
    if is_dataclass(hint):
        return from_plain(hint, value, where, files)  # type: ignore[arg-type]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (list, tuple):
        _expect(value, (list, tuple), where)
        return origin(_items(args[0], value, where, files))
    if origin is Literal:
        if value not in args:
            raise UsageError(f"{where}: {value!r} is not one of {', '.join(map(repr, args))}")
        return value
    if hint is float:
        return _finite(value, where)
    if origin is dict and args[1] is float:
        _expect(value, (dict,), where)
        return {name: _finite(number, f"{where}.{name}") for name, number in value.items()}
    kind = origin or hint
    if isinstance(kind, type):
        _expect(value, (kind,), where)
    return value


def _items(hint: Any, values: Any, where: str, files: PictureFiles | None) -> list[Any]:
    if hint is float:
        return [_finite(value, where) for value in values]
    if hint in (int, str, bool):
        for value in values:
            _expect(value, (hint,), where)
        return list(values)
    return [_value(hint, value, f"{where}[{i}]", files) for i, value in enumerate(values)]


def _finite(value: Any, where: str) -> float:
    _expect(value, (int, float), where)
    if not abs(value) <= LARGEST_NUMBER:  # NaN is in no range
        raise UsageError(f"{where}: {str(value)[:60]} is not a finite number of at most {LARGEST_NUMBER:g}")
    return float(value)


def _expect(value: Any, kinds: tuple[type, ...], where: str) -> None:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise UsageError(f"{where}: expected {kinds[-1].__name__}, got {type(value).__name__} {str(value)[:60]!r}")
