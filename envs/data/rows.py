"""Rows of data sets: from memory, from local files, or from the Hugging Face Hub.

A data set is identified by name and split. Files below ``$ROLLENV_DATA`` take precedence over the hub. Rows are read
once per process and shared, read-only.
"""

from __future__ import annotations

import csv
import functools
import gzip
import importlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rollenv.core import hub
from rollenv.core.errors import HubUnreachable, MissingData, NotOnHub, RollenvError, UsageError, did_you_mean
from rollenv.core.needs import DataFiles, data_root, require_extra

Row = Mapping[str, Any]
Rows = Sequence[Row]

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".csv")
#: Maximum characters of a cell of a table; Python's own limit is 131,072.
_LARGEST_CELL = 1 << 24
SPLITS = ("train", "test", "validation", "valid", "val", "dev", "prompt")


@dataclass(frozen=True)
class LocalFile:
    """A published file with a split, under its original name."""

    name: str
    tasks: range | None = None
    """The range of ``task_id`` of the split, if the file holds several splits."""


@dataclass(frozen=True)
class DataSet:
    """The location of a data set, on the hub and below ``$ROLLENV_DATA``."""

    hub: str
    folder: str
    config: str | None = None
    files: Mapping[str, tuple[LocalFile, ...]] = field(default_factory=dict)
    """Published files of each split, which take precedence over ``SPLIT.jsonl`` and the like."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column names of the published files, and the names of the same columns on the hub."""

    def need(self, split: str) -> DataFiles:
        """Return the need for this split's files below ``$ROLLENV_DATA``."""
        files = tuple(file.name for file in self.candidates(split))
        return DataFiles(self.folder, files, f"https://huggingface.co/datasets/{self.hub}")

    def candidates(self, split: str) -> list[LocalFile]:
        """Return the possible files of a split, in order of preference."""
        own = self.files.get(split, ())
        return [*own, *(LocalFile(f"{split}{suffix}") for suffix in SUFFIXES), LocalFile(f"data/{split}-*.parquet")]


def _mbpp(first: int, last: int, *own: str) -> tuple[LocalFile, ...]:
    return (LocalFile("mbpp.jsonl", range(first, last + 1)), *(LocalFile(name) for name in own))


_GSM8K = {"question": "problem"}
_EVAL_MATH = {"math": (LocalFile("math500_test.jsonl"), LocalFile("math500.jsonl"))}

#: The data sets of the registered ids, by GEM's name for them.
KNOWN: dict[str, DataSet] = {
    known.hub: known
    for known in (
        DataSet("axon-rl/ASDIV-2k", "asdiv2k"),
        DataSet("axon-rl/GSM-8k", "gsm8k", columns=_GSM8K),
        DataSet("axon-rl/MATH-12k", "math12k"),
        DataSet("axon-rl/MATH-lvl3to5-8k", "math8k-3to5"),
        DataSet("axon-rl/ORZ-57k", "orz57k"),
        DataSet("axon-rl/DeepScaleR-40K", "deepscaler40k"),
        DataSet("zwhe99/DeepMath-103K", "deepmath103k"),
        DataSet("axon-rl/geometry3k", "geometry3k"),
        DataSet("leonardPKU/GEOQA_R1V_Train_8K", "geoqa_r1v_train_8k"),
        DataSet("axon-rl/math-eval", "math", files=_EVAL_MATH),
        DataSet("axon-rl/CodeContest", "codecontest"),
        DataSet("axon-rl/TACO-8k", "taco8k"),
        DataSet("axon-rl/PrimeIntellect-15k", "primeintellect15k"),
        DataSet("axon-rl/NaturalQuestions", "naturalquestions"),
        DataSet("axon-rl/HotpotQA", "hotpotqa"),
        DataSet("axon-rl/search-eval", "search-eval"),
        DataSet("google-research-datasets/nq_open", "nq_open"),
        *(DataSet(f"axon-rl/RuleTaker-d{depth}-70k", f"ruletaker-d{depth}") for depth in (0, 1, 2, 3, 5)),
        DataSet(
            "openai/openai_humaneval",
            "humaneval",
            files={"test": (LocalFile("HumanEval.jsonl.gz"), LocalFile("HumanEval.jsonl"))},
        ),
        DataSet(
            "google-research-datasets/mbpp",
            "mbpp",
            config="full",
            files={
                "prompt": _mbpp(1, 10),
                "test": _mbpp(11, 510, "mbpp_test.jsonl"),
                "validation": _mbpp(511, 600),
                "train": _mbpp(601, 974),
            },
            columns={"prompt": "text", "test": "test_list"},
        ),
    )
}
_BY_FOLDER = {known.folder: known for known in KNOWN.values()}


def load_rows(name: str = "", split: str | None = None, rows: Iterable[Row] | None = None) -> Rows:
    """Load the rows of one split.

    Args:
        name: a registered data set (its name on the hub or its folder below ``$ROLLENV_DATA``), any data set of the
            hub (OWNER/NAME, whose files may lie in the folder ``name`` below ``$ROLLENV_DATA``), or the path of a
            .jsonl, .jsonl.gz, .parquet or .csv file or of a folder of those.

    Raises:
        MissingData: it was not found; the message says where it was looked for and where to get it.
    """
    if rows is not None:
        found: Sequence[Row] = []
        if isinstance(rows, HubRows):
            found = rows
        elif hasattr(rows, "features") and hasattr(rows, "__getitem__"):  # a table of the datasets library
            found = HubRows(rows)
        else:
            found = _frozen(rows)
    elif not name:
        raise UsageError("a data environment needs dataset_name= (a name or a path) or dataset= (rows)")
    elif known := KNOWN.get(name) or _BY_FOLDER.get(name):
        found = _local(known, split) or _from_hub(known, split)
    elif name.endswith(SUFFIXES) or Path(name).exists():
        found = _from_path(Path(name), split)
    else:
        other = DataSet(name, name.rpartition("/")[2].lower())
        found = _local(other, split) or _from_hub(other, split)
    if not found:
        raise UsageError(f"the data set {name or 'given as rows'} has no rows in split {split!r}")
    return found


def is_local(name: str, split: str) -> bool:
    """Return whether ``$ROLLENV_DATA`` holds a split of a registered data set."""
    return name in KNOWN and bool(_find(KNOWN[name], split))


def folder_of(name: str) -> Path | None:
    """Return the folder of the files that a data set's rows refer to; None if unknown."""
    known, root = KNOWN.get(name) or _BY_FOLDER.get(name), _root()
    if known:
        return root / known.folder if root else None
    path = Path(name)
    if path.is_dir():
        return path
    return path.parent if name.endswith(SUFFIXES) else None


def _root() -> Path | None:
    return Path(root) if (root := data_root()) else None


def _find(known: DataSet, split: str) -> list[tuple[Path, LocalFile]]:
    """Return the local files of a split (several if it is stored in pieces)."""
    root = _root()
    for file in known.candidates(split) if root else ():
        assert root is not None
        if paths := sorted((root / known.folder).glob(file.name)):
            return [(path, file) for path in paths]
    return []


def _local(known: DataSet, split: str | None) -> Rows:
    """Return the rows below ``$ROLLENV_DATA``; empty if there are none."""
    root = _root()
    if split is None:
        if root and (root / known.folder).is_dir():
            raise UsageError(f"pass split= to say which part of {known.hub} you mean")
        return ()
    found = _find(known, split)
    parts = [read_file(path, file.tasks, tuple(known.columns.items())) for path, file in found]
    if found and not any(parts):
        raise UsageError(f"the data set {known.hub} has no rows in {', '.join(str(path) for path, _ in found)}")
    return parts[0] if len(parts) == 1 else tuple(row for part in parts for row in part)


def _from_path(path: Path, split: str | None) -> Rows:
    """Read a file or a folder; splits are recognised by file names."""
    files = files_at(path)
    splits = {p: split_of(p) for p in files}
    chosen = [p for p in files if splits[p] == split] if split else files
    names = sorted({s or "(no name)" for s in splits.values()})
    if not chosen:
        raise UsageError(f"{path} has no split {split!r}: its file names say {', '.join(names)}")
    if len({splits[p] for p in chosen}) > 1:
        raise UsageError(f"{path} has several splits; pass split= one of {', '.join(names)}")
    refuse_twins(chosen)
    return tuple(row for p in chosen for row in read_file(p))


def files_at(path: Path) -> list[Path]:
    """Return the files of rows at a path: itself, or those of a folder.

    Raises:
        MissingData: there are none.
    """
    if path.is_dir():
        inside = (p for p in (*path.iterdir(), *path.glob("data/*")) if not p.name.startswith("."))
        files = sorted(p for p in inside if p.name.endswith(SUFFIXES))
    else:
        files = [path] if path.exists() else []
        if files and not path.name.endswith(SUFFIXES):
            raise UsageError(f"{path} is not a file of rows: its name must end in {', '.join(SUFFIXES)}")
    if not files:
        hint = "" if path.exists() else did_you_mean(path.name, (other.name for other in path.parent.glob("*")))
        raise MissingData(f"there is no {', '.join(SUFFIXES)} file at {path}; {hint}".removesuffix("; "))
    return files


def refuse_twins(files: Iterable[Path]) -> None:
    """Refuse files of one name with several endings, which seem to hold the same rows.

    Raises:
        UsageError: there are two.
    """
    by_stem: dict[str, Path] = {}
    for file in files:
        stem = file.name.removesuffix(".gz").rpartition(".")[0]
        other = by_stem.setdefault(stem, file)
        if other is not file:
            raise UsageError(f"{other} and {file} seem to hold the same rows; remove or rename one of them")


def split_of(path: Path) -> str | None:
    """Return the split that a file's name says."""
    words = re.split(r"[^a-z0-9]+", path.name.lower())
    return next((split for split in SPLITS if split in words), None)


def read_file(path: Path, tasks: range | None = None, columns: tuple[tuple[str, str], ...] = ()) -> Rows:
    """Return the rows of a file.

    Raises:
        UsageError: it cannot be read; the message has the line, if there are lines.
    """
    try:
        stat = path.stat()
        return _read(path.resolve(), stat.st_mtime_ns, stat.st_size, tasks, columns)
    except RollenvError:
        raise
    except Exception as error:  # BadGzipFile, EOFError, zlib's and pyarrow's errors have no common base
        problem = f"{type(error).__name__}: {str(error)[:200]}"
        raise UsageError(
            f"{path} cannot be read ({problem}). Is it cut, or of another format than its name says?"
        ) from error


@functools.lru_cache(maxsize=64)
def _read(path: Path, mtime_ns: int, size: int, tasks: range | None, columns: tuple[tuple[str, str], ...]) -> Rows:
    """Read a file, cached by its modification time and size."""
    rename = dict(columns)
    read = {".parquet": _parquet_rows, ".csv": _csv_rows}.get(path.suffix, _jsonl_rows)
    rows: Iterable[Row] = read(path)
    kept = (row for row in rows if tasks is None or row["task_id"] in tasks)
    return _frozen({rename.get(name, name): value for name, value in row.items()} for row in kept)


def _text(path: Path) -> str:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}, line {number}: this is not UTF-8 ({error.reason}). Save it as UTF-8") from error


def _csv_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a table whose first line names the columns; cells are texts.

    Columns without a name, such as the numbers that pandas writes, are left out.
    """
    csv.field_size_limit(_LARGEST_CELL)
    lines = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        names = [name.strip() for name in next(lines, [])]
        named = [*filter(None, names)]
        if len({*named}) < len(named):
            raise UsageError(f"{path}, line 1: it has to name each column once, and says {', '.join(names)!r}")
        if len(names) == 1 and (other := next((sign for sign in ";\t|" if sign in names[0]), "")):
            raise UsageError(f"{path}, line 1: its cells are separated by {other!r}; save it with commas")
        for cells in lines:
            if cells and len(cells) != len(names):
                raise UsageError(
                    f"{path}, line {lines.line_num}: it has {len(cells)} cells for {len(names)} columns; text with a "
                    "comma needs quotes"
                )
            if cells:
                yield {name: cell for name, cell in zip(names, cells, strict=True) if name}
    except csv.Error as error:
        raise UsageError(f"{path}, line {lines.line_num}: this is not CSV: {error}") from error


def _jsonl_rows(path: Path) -> Iterator[dict[str, Any]]:
    text = _text(path)
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        if line.strip():
            try:
                row = read_json(line)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{path}, line {number}: this is no JSON on one line: {error}") from error
            if not isinstance(row, dict):
                raise UsageError(f"{path}, line {number}: a row is an object of columns, not {line.strip():.60}")
            yield row


def read_json(text: str) -> Any:
    """Parse a JSON value with integers of any length; Python's own parser stops at 4,300 digits."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(text, parse_int=lambda digits: int(Decimal(digits)))


def _parquet_rows(path: Path) -> Sequence[dict[str, Any]]:
    parquet: Any = require_extra("pyarrow.parquet", "envs", f"reading {path.name}")
    table = parquet.read_table(path, use_threads=False)
    rows: list[dict[str, Any]] = table.to_pylist()
    for column in table.schema:
        if (kind := str(column.type)) in ("float", "halffloat"):
            # 0.1 in 32 bits is 0.10000000149 in 64, which is not what was written
            narrow = np.float32 if kind == "float" else np.float16
            for row in rows:
                if row[column.name] is not None:
                    row[column.name] = float(str(narrow(row[column.name])))
    return rows


@functools.lru_cache(maxsize=64)
def _hub_rows(name: str, config: str | None, split: str | None) -> Rows:
    library = importlib.import_module("datasets")
    if not Path(name).is_dir() and not _in_hub_cache(library, name):
        hub.ask(name, "dataset")
    loaded = library.load_dataset(name, config) if config else library.load_dataset(name)
    names = sorted(loaded)
    if split is None and len(names) == 1:
        split = names[0]
    if split not in loaded:
        raise UsageError(f"{name} has the splits {', '.join(names)}; pass split= one of them, not {split!r}")
    return HubRows(loaded[split])


def _in_hub_cache(library: Any, name: str) -> bool:
    """Return whether a data set is in the local cache of the hub."""
    folder = Path(getattr(getattr(library, "config", None), "HF_DATASETS_CACHE", "") or "/nonexistent")
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return any(re.sub(r"[^a-z0-9]", "", path.name.lower()) == plain for path in folder.glob("*"))


class HubRows(Sequence[Row]):
    """A split of the ``datasets`` library, mapped from disk; rows are read on access."""

    def __init__(self, table: Any):
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        return MappingProxyType(dict(self.table[int(index)]))


def _from_hub(known: DataSet, split: str | None) -> Rows:
    try:
        importlib.import_module("datasets")
    except ImportError as error:
        raise MissingData(_missing(known, split)) from error
    try:
        return _hub_rows(known.hub, known.config, split)
    except (HubUnreachable, NotOnHub) as error:
        raise MissingData(f"{_missing(known, split)} ({error})") from error
    except OSError as error:
        raise MissingData(f"{_missing(known, split)} (the hub said: {str(error)[:200]})") from error


def _missing(known: DataSet, split: str | None) -> str:
    names = ", ".join(f"{known.folder}/{file.name}" for file in known.candidates(split or "SPLIT"))
    where = "$ROLLENV_DATA does not name a folder" if _root() is None else f"$ROLLENV_DATA ({_root()}) has none of"
    return (
        f"the data set {known.hub} (split {split!r}) is not here: {where}"
        f"{' with' if _root() is None else ''} {names}, and the hub needs `pip install 'rollenv[data]'` and a "
        f"connection. "
        f"Get it from https://huggingface.co/datasets/{known.hub} and put it there"
    )


def _frozen(rows: Iterable[Row]) -> Rows:
    try:
        return tuple(row if isinstance(row, MappingProxyType) else MappingProxyType(dict(row)) for row in rows)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"rows must be mappings from columns to values: {error}") from error
