"""Pictures in the cells of data sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollenv.core.errors import MissingData
from rollenv.core.pictures import Picture, picture

_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def cells_of(cell: Any) -> list[Any]:
    """Return the pictures in a cell as they are there: a cell has one, a list of them, or nothing."""
    if cell is None or isinstance(cell, float):  # NaN, in tables
        return []
    if isinstance(cell, np.ndarray) and cell.dtype == object:
        cell = cell.tolist()
    cells = list(cell) if isinstance(cell, list | tuple) else [cell]
    in_files = [isinstance(each, Mapping) and bool(each.keys() & {"bytes", "path"}) for each in cells]
    return [(c.get("bytes") or c.get("path")) if of_file else c for c, of_file in zip(cells, in_files, strict=True)]


def pictures_of(cell: Any, folder: Path | None) -> list[Picture]:
    """Return the pictures in a cell.

    Args:
        cell: Pillow images, arrays, the bytes of files, paths, data URLs, or dicts of ``bytes`` and ``path``.
        folder: paths are relative to it.

    Raises:
        MissingData: there is no file at a path.
        UsageError: a picture cannot be read.
    """
    return [picture(_file(each, folder) if isinstance(each, str | Path) else each) for each in cells_of(cell)]


def has_pictures(cell: Any) -> bool:
    """Return whether a cell has what looks like pictures."""
    cells = cells_of(cell)
    return bool(cells) and all(
        isinstance(each, bytes) or str(each).startswith("data:image/") or str(each).lower().endswith(_ENDINGS)
        for each in cells
    )


def key_of(cell: Any) -> str:
    """Return a text that is equal for equal cells."""
    return " ".join(
        hashlib.sha256(each).hexdigest() if isinstance(each, bytes) else str(each) for each in cells_of(cell)
    )


def _file(path: str | Path, folder: Path | None) -> bytes | str:
    if str(path).startswith("data:"):
        return str(path)
    place = Path(path) if folder is None else folder / path
    try:
        if place.exists() and not place.is_file():  # a device, which may never end
            raise OSError("it is no file")
        return place.read_bytes()
    except (OSError, ValueError) as error:
        raise MissingData(f"the picture {str(place)!r:.300} cannot be read: {error}") from error
