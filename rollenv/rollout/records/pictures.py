"""Pictures of stored episodes: files ``pictures/SHA256.ENDING`` beside episodes, which name them by their hashes."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollenv.core.errors import RollenvError, UsageError, writes
from rollenv.core.pictures import Picture, file_name, picture


class StorageError(RollenvError):
    """A file of trajectories, or a picture of them, cannot be read or written."""


class PictureFiles:
    """The pictures of the episodes in a folder.

    Args:
        folder: the folder of the episodes.
    """

    def __init__(self, folder: Path):
        self.folder = folder / "pictures"
        self._saved: set[str] = set()

    def save(self, image: Picture) -> dict[str, Any]:
        """Write a picture's file, unless it is there, and return its JSON form without data.

        Raises:
            StorageError: it cannot be written.
        """
        if image.sha256 not in self._saved:
            file = self.folder / image.name
            with writes(file, kind=StorageError):
                if not file.exists():
                    self.folder.mkdir(exist_ok=True)
                    partial = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}.partial")
                    partial.write_bytes(image.data)
                    partial.replace(file)
            self._saved.add(image.sha256)
        return image.as_json(data=False)

    def load(self, form: Any, where: str) -> Picture:
        """Return the picture of a JSON form.

        Args:
            where: the place of the form, for errors.

        Raises:
            StorageError: its file is missing, damaged or another one.
            UsageError: it is no form of a picture.
        """
        if isinstance(form, Picture):
            return form
        if isinstance(form, Mapping) and "data" in form:
            return picture(form)
        sha256 = form.get("sha256") if isinstance(form, Mapping) else None
        if not isinstance(sha256, str) or not (len(sha256) == 64 and sha256.isalnum()):
            raise UsageError(f"{where}: expected a picture with its sha256, got {form!r:.100}")
        file = self.folder / file_name(form)
        try:
            image = Picture(file.read_bytes())
        except OSError as error:
            raise StorageError(
                f"{where}: the picture {file} cannot be read ({error.strerror}); it belongs to the "
                "episodes: copy the folder with them"
            ) from error
        except UsageError as error:
            raise StorageError(f"{where}: {file}: {error}") from error
        if image.sha256 != sha256:
            raise StorageError(f"{where}: {file} holds another picture")
        return image
