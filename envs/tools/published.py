"""The files of published benchmarks."""

from __future__ import annotations

from pathlib import Path

from rollenv.errors import MissingData
from rollenv.needs import DataFiles, data_root


def folder_of(need: DataFiles) -> Path:
    """The folder that holds the files.

    Raises:
        MissingData: they are not there; the message says where to get them.
    """
    root = data_root()
    if not need.here:
        where = f"$ROLLENV_DATA ({root}) has no {need.folder}" if root else "$ROLLENV_DATA does not name a folder"
        raise MissingData(f"the files of {need.folder} are not here: {where}; {need.hint}")
    return Path(str(root)) / need.folder
