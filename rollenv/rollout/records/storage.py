"""Files of trajectories and groups: JSONL, to which records are appended, and Parquet, small and fast to query.

Their pictures are files of their own, in the folder ``pictures`` beside them.

>>> with JsonlWriter("episodes.jsonl") as out:          # doctest: +SKIP
...     manager = RolloutManager(agent, on_trajectory=out.write)
>>> for trajectory in read("episodes.jsonl"):           # doctest: +SKIP
...     ...
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, get_args, get_origin, overload

from rollenv.core.errors import UsageError, writes
from rollenv.core.needs import require_extra
from rollenv.rollout.records.pictures import PictureFiles, StorageError
from rollenv.rollout.records.plain import bare, from_plain, hints, to_plain
from rollenv.rollout.types import Group, Trajectory

Record = TypeVar("Record", Trajectory, Group)

#: Records held in memory while Parquet is written or read.
_CHUNK = 256


def write(path: str | Path, records: Iterable[Trajectory] | Iterable[Group]) -> None:
    """Write records to a new file; an existing one is replaced.

    Raises:
        UsageError: the file name has another ending.
        MissingExtra: pyarrow, which Parquet needs, is not installed.
    """
    if _is_parquet(path):
        _write_parquet(Path(path), records)
        return
    Path(path).unlink(missing_ok=True)
    with JsonlWriter(path) as out:
        for record in records:
            out.write(record)


@overload
def read(path: str | Path) -> Iterator[Trajectory]: ...


@overload
def read(path: str | Path, kind: type[Record]) -> Iterator[Record]: ...


def read(path: str | Path, kind: type[Any] = Trajectory) -> Iterator[Any]:
    """Iterate over the records of a file.

    A last line of JSONL that a crash cut short is skipped with a warning.

    Raises:
        StorageError: the file is absent or damaged; the text has the place.
        UsageError: a record is not of type ``kind``.
        MissingExtra: pyarrow, which Parquet needs, is not installed.
    """
    parquet = _is_parquet(path)
    if not Path(path).is_file():
        raise StorageError(f"there is no file {str(path)!r}")
    files = PictureFiles(Path(path).parent)
    lines = (from_plain(kind, data, where, files) for where, data in json_lines(Path(path)))
    return _read_parquet(Path(path), kind) if parquet else lines


def _is_parquet(path: str | Path) -> bool:
    suffix = Path(path).suffix
    if suffix not in (".jsonl", ".parquet"):
        raise UsageError(f"trajectories are stored as .jsonl or .parquet files, not as {str(path)!r}")
    return suffix == ".parquet"


# -- JSONL -------------------------------------------------------------------------------------------------------------


class JsonlWriter:
    """Appends records to a file, each with one write of a whole line, so that a crash loses at most the last one.

    If an earlier writer was interrupted in the middle of a line, that line is removed with a warning.

    The file is ASCII with JSON escapes. Two adjacent surrogates are read back as the character that they encode; all
    other text is read back unchanged.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        _mend(self.path)
        self._pictures = PictureFiles(self.path.parent)
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115

    def write(self, record: Trajectory | Group) -> None:
        """Append a record.

        Raises:
            UsageError: the record is not JSON data.
            StorageError: the record cannot be written, for example because the disk is full.
        """
        try:
            rest = memoryview(json.dumps(to_plain(record, self._pictures), separators=(",", ":")).encode() + b"\n")
        except (TypeError, ValueError) as error:
            raise UsageError(f"a record of {record.task.env_id} is not JSON data: {error}") from error
        with writes(self.path, "its complete records are kept", StorageError):
            while rest:  # a write to a full disk may be partial
                rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Close the file; further calls have no effect."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _mend(path: Path) -> None:
    """Remove or complete an incomplete last line."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with open(path, "r+b") as file:
        start = _last_line(file)
        file.seek(start)
        rest = file.read()
        if rest.endswith(b"\n"):
            return
        try:
            json.loads(rest)
        except (ValueError, RecursionError):
            file.truncate(start)
            warnings.warn(_cut_text(path, len(rest), "is removed"), stacklevel=3)
        else:
            file.write(b"\n")


def _last_line(file: Any) -> int:
    """Return the offset of the last line."""
    end = at = file.seek(0, 2)
    while at > 0:
        at = max(0, at - (1 << 16))
        file.seek(at)
        block = file.read(min(1 << 16, end - 1 - at))  # the last byte may be the line's own newline
        if (found := block.rfind(b"\n")) >= 0:
            return int(at + found + 1)
    return 0


def read_object(file: Path, hint: str) -> dict[str, Any]:
    """Return the object in a file of JSON.

    Args:
        hint: what to do if there is none.

    Raises:
        UsageError: the file cannot be read, or is damaged.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}; {hint}") from error
    except (ValueError, RecursionError) as error:
        data = error
    if not isinstance(data, dict):
        raise UsageError(f"{file} is damaged ({data!r:.100}); {hint}")
    return data


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place and the data of each line of JSON; an incomplete last line is skipped with a warning.

    Raises:
        StorageError: a line is damaged.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                data = json.loads(line)
            except (ValueError, RecursionError) as error:
                if line.endswith(b"\n"):
                    raise StorageError(
                        f"{path}: line {number} is damaged ({error}); remove that line, or restore the file"
                    ) from error
                warnings.warn(_cut_text(path, len(line), "is left out"), stacklevel=2)
                return
            yield f"{path}: line {number}", data


def _cut_text(path: Path, size: int, what: str) -> str:
    return f"{path}: the last record was cut short after {size} bytes, by a crash or a full disk, and {what}"


# -- Parquet -----------------------------------------------------------------------------------------------------------

#: Prefix of four hexadecimal digits that replace a lone surrogate, which UTF-8 cannot encode, or this character itself.
_ESCAPE = "\uffff"
_TO_ESCAPE = re.compile("[\ud800-\udfff\uffff]")
_ESCAPED = re.compile("\uffff([0-9a-f]{4})")


def _write_parquet(path: Path, records: Iterable[Trajectory] | Iterable[Group]) -> None:
    pa, parquet = _arrow()
    remaining: Iterator[Trajectory | Group] = iter(records)
    first, files = next(remaining, None), PictureFiles(path.parent)
    kind = type(first) if first is not None else Trajectory
    schema = pa.schema([(name, _arrow_type(hint)) for name, hint in hints(kind).items()])
    with parquet.ParquetWriter(path, schema, compression="zstd") as out:
        remaining = itertools.chain([] if first is None else [first], remaining)
        while chunk := list(itertools.islice(remaining, _CHUNK)):
            rows = [_to_row(kind, to_plain(record, files)) for record in chunk]
            try:
                out.write_table(pa.Table.from_pylist(rows, schema))
            except (pa.ArrowException, OverflowError) as error:
                raise UsageError(f"records do not fit Parquet: {error}; use JSONL instead") from error


def _read_parquet(path: Path, kind: type[Any]) -> Iterator[Any]:
    pa, parquet = _arrow()
    files = PictureFiles(path.parent)
    try:
        with parquet.ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(_CHUNK) for row in batch.to_pylist())
            for number, row in enumerate(rows):
                yield from_plain(kind, _from_row(kind, row), f"{path}: row {number}", files)
    except pa.ArrowException as error:
        raise StorageError(f"{path} is not a Parquet file, or is damaged: {error}") from error


def _arrow() -> tuple[Any, Any]:
    pa = require_extra("pyarrow", "envs", "Parquet")
    return pa, importlib.import_module("pyarrow.parquet")


def _arrow_type(hint: Any) -> Any:
    """Return the Arrow type of a field; fields without a fixed shape are stored as JSON text."""
    pa, _ = _arrow()
    hint = bare(hint)
    if is_dataclass(hint):
        return pa.struct([(name, _arrow_type(inner)) for name, inner in hints(hint).items()])
    if get_origin(hint) in (list, tuple):
        return pa.list_(_arrow_type(get_args(hint)[0]))
    return {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}.get(hint, pa.string())


def _to_row(hint: Any, value: Any) -> Any:
    hint = bare(hint)
    if value is None or hint in (int, float, bool):
        return value
    if is_dataclass(hint):
        return {name: _to_row(inner, value[name]) for name, inner in hints(hint).items()}
    if get_origin(hint) in (list, tuple):
        inner = get_args(hint)[0]
        return value if inner in (int, float, bool) else [_to_row(inner, v) for v in value]
    if not _is_text(hint):
        return json.dumps(value)
    return _TO_ESCAPE.sub(lambda m: f"{_ESCAPE}{ord(m[0]):04x}", value)


def _from_row(hint: Any, value: Any) -> Any:
    hint = bare(hint)
    if value is None or hint in (int, float, bool):
        return value
    if is_dataclass(hint):
        known = hints(hint)
        return {name: _from_row(known.get(name, str), inner) for name, inner in value.items()}
    if get_origin(hint) in (list, tuple):
        inner = get_args(hint)[0]
        return value if inner in (int, float, bool) else [_from_row(inner, v) for v in value]
    if not _is_text(hint):
        return json.loads(value)
    if not isinstance(value, str):
        return value
    return _ESCAPED.sub(lambda m: chr(int(m[1], 16)), value)


def _is_text(hint: Any) -> bool:
    return hint is str or (all(isinstance(a, str) for a in get_args(hint)) and bool(get_args(hint)))
