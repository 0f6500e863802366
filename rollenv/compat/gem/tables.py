"""The data set that an environment shows as ``env.dataset``, in the order in which it is played."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rollenv.core import UsageError
from rollenv.envs.data.rows import HubRows, Row, Rows

_RowFunction = Callable[[dict[str, Any]], Any]


class NoSplit(UsageError, KeyError):
    """A data set has no such split."""

    __str__ = Exception.__str__  # KeyError's puts the text in quotes


class Table(Sequence[Any]):
    """Rows with the methods of a ``datasets.Dataset`` that GEM's programs use, where that library is not installed or
    cannot hold the rows. Nothing is changed in place; orders follow the seed as they do there.
    """

    def __init__(self, rows: Iterable[Row]):
        self._rows = tuple(rows)

    @property
    def column_names(self) -> list[str]:
        return list(self._rows[0]) if self._rows else []

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """A row by number, a column by name, or columns of the rows of a slice or list."""
        if isinstance(key, str):
            return [row[key] for row in self._rows]
        if isinstance(key, slice | list | tuple | range | np.ndarray):
            chosen = self._rows[key] if isinstance(key, slice) else [self._rows[i] for i in key]
            return {name: [row[name] for row in chosen] for name in self.column_names}
        return dict(self._rows[key])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(dict, self._rows)

    def select(self, indices: Iterable[int], **_: Any) -> Table:
        return Table(self._rows[i] for i in indices)

    def shuffle(self, seed: int | None = None, **_: Any) -> Table:
        return self.select(np.random.default_rng(seed).permutation(len(self)))

    def map(self, function: _RowFunction, **_: Any) -> Table:
        return Table({**row, **(function(row) or {})} for row in self)

    def filter(self, function: _RowFunction, **_: Any) -> Table:
        return Table(row for row in self if function(row))

    def to_list(self) -> list[dict[str, Any]]:
        return list(self)


def chosen_split(dataset: Any, split: str | None) -> Any:
    """The split of what may be a dict of splits.

    Raises:
        UsageError: it has several splits, and none was asked for.
        NoSplit: it has others.
    """
    if not isinstance(dataset, Mapping):
        return dataset
    if split is None and len(dataset) == 1:
        return next(iter(dataset.values()))
    if split not in dataset:
        kind = UsageError if split is None else NoSplit
        raise kind(f"the data set has the splits {', '.join(dataset)}; pass split= one of them, not {split!r}")
    return dataset[split]


def as_dataset(rows: Rows, change: _RowFunction | None = None, **map_arguments: Any) -> Any:
    """The rows as a ``datasets.Dataset``, or as a :class:`Table` where that cannot be.

    Args:
        change: makes of a row the one that is shown. Equal changes of the same rows are made once.
        map_arguments: for the method ``map`` of a table on disk.
    """
    if not isinstance(rows, HubRows):
        return _built(_ById(rows), change)
    return rows.table.map(change, **map_arguments) if change else rows.table


class _ById:
    """A key for rows, which cannot be hashed: the same for the same object."""

    def __init__(self, rows: Rows):
        self.rows = rows

    def __hash__(self) -> int:
        return id(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.rows is other.rows


@functools.lru_cache(maxsize=16)
def _built(key: _ById, change: _RowFunction | None) -> Any:
    """Rows read from a file are shared by the environments of a process, and so is what is made of them."""
    rows = [change(dict(row)) if change else dict(row) for row in key.rows]
    if importlib.util.find_spec("datasets") is None:
        return Table(rows)
    library, arrow = importlib.import_module("datasets"), importlib.import_module("pyarrow")
    try:
        return library.Dataset.from_list(rows)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError):  # columns of several types
        return Table(rows)
