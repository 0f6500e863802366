"""Pictures in the cells of data sets."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollenv.core.errors import MissingData
from rollenv.core.pictures import Picture, picture

_ENDINGS = (".png", ".jpg", ".jpeg", ".jfif", ".jpe", ".webp", ".gif", ".bmp", ".tif", ".tiff")
#: The first bytes of files of pictures.
_MAGIC = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")


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
        cell: Pillow images, arrays, the bytes of files, in base64 too, paths, data URLs, or dicts of ``bytes`` and
            ``path``.
        folder: paths are relative to it.

    Raises:
        MissingData: there is no file at a path.
        UsageError: a picture cannot be read.
    """
    return [picture(_file(each, folder) if isinstance(each, str | Path) else each) for each in cells_of(cell)]


def has_pictures(cell: Any, folder: Path | None = None) -> bool:
    """Return whether a cell has what looks like pictures; paths are relative to ``folder``."""
    cells = cells_of(cell)
    return bool(cells) and all(
        not isinstance(each, str | int | float)
        or (isinstance(each, str) and (each.lower().startswith("data:image/") or each.lower().endswith(_ENDINGS)))
        or (isinstance(each, str) and (_is_base64(each) or _is_file(each, folder)))
        for each in cells
    )


def _is_base64(text: str) -> bool:
    try:
        return len(text) > 32 and base64.b64decode(text[:32], validate=True).startswith(_MAGIC)
    except ValueError:
        return False


def _is_file(path: str, folder: Path | None) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return bool(path) and Path(folder or "", path).is_file()
    return False


def key_of(cell: Any) -> str:
    """Return a text that is equal for equal cells."""
    return " ".join(
        hashlib.sha256(each).hexdigest() if isinstance(each, bytes) else str(each) for each in cells_of(cell)
    )


def _file(path: str | Path, folder: Path | None) -> bytes | str:
    if str(path).startswith("data:"):
        return str(path)
    if _is_base64(str(path)):
        return base64.b64decode("".join(str(path).split()))
    place = Path(path) if folder is None else folder / path
    try:
        if place.exists() and not place.is_file():  # a device, which may never end
            raise OSError("it is no file")
        return place.read_bytes()
    except (OSError, ValueError) as error:
        raise MissingData(f"the picture {str(place)!r:.300} cannot be read: {error}") from error
