"""Mathematics with pictures: Geometry3K and similar sets."""

from __future__ import annotations

import base64
import importlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rollenv.core.env import ResetResult
from rollenv.core.errors import MissingData, MissingExtra, UsageError
from rollenv.envs.data.rows import Row, folder_of
from rollenv.envs.math.env import MathEnv
from rollenv.envs.math.grade import SECONDS

#: Magic bytes of the image formats that models accept.
_KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp", b"BM": "bmp"}


class MathVisualEnv(MathEnv):
    """A problem with pictures. The observation is its text; ``info["images"]`` are the pictures at ``reset``.

    Each is a part of a chat message for endpoints, ``{"type": "image_url", "image_url": {"url":
    "data:image/png;base64,..."}}``, which is JSON. :attr:`images` are the same pictures as Pillow images.

    A cell has one picture, a list of them, or nothing. A picture is a Pillow image, the bytes of a file, a path, or a
    dict of ``bytes`` and ``path``, as in parquet files. Paths are relative to the folder of the data set.
    """

    def __init__(
        self,
        dataset_name: str | None = "",
        split: str | None = None,
        dataset: Iterable[Row] | None = None,
        image_key: str = "images",
        question_key: str = "problem",
        answer_key: str = "answer",
        seed: int | None = None,
        use_mp: bool = True,
        *,
        use_format_error_reward: bool = False,
        instruct: bool = True,
        seconds: float = SECONDS,
    ):
        super().__init__(
            dataset_name,
            split,
            dataset,
            question_key,
            answer_key,
            use_format_error_reward,
            seed,
            use_mp,
            instruct=instruct,
            seconds=seconds,
        )
        if image_key not in self.rows[0]:
            raise UsageError(f"the rows have no column {image_key!r}; they have {', '.join(map(repr, self.rows[0]))}")
        self.image_key = image_key
        self._folder = folder_of(dataset_name or "")

    @property
    def images(self) -> list[Any]:
        """The pictures of the current problem, as Pillow images."""
        cell = _listed(self.row.get(self.image_key))
        return [image if hasattr(image, "save") else _decoded(_bytes(image, self._folder)) for image in cell]

    def _encoded(self) -> list[bytes]:
        return [_bytes(image, self._folder) for image in _listed(self.row.get(self.image_key))]

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        observation, info = super()._reset(options)
        return observation, info | {"images": [_part(image) for image in self._encoded()]}


def _listed(cell: Any) -> list[Any]:
    if cell is None:
        return []
    return list(cell) if isinstance(cell, list | tuple) else [cell]


def _bytes(image: Any, folder: Path | None) -> bytes:
    """Return the encoded bytes of a picture."""
    if isinstance(image, Mapping):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | Path):
        path = Path(image) if folder is None else folder / image
        try:
            return path.read_bytes()
        except OSError as error:
            raise MissingData(f"the picture {path} cannot be read: {error.strerror}") from error
    if hasattr(image, "save"):
        file = io.BytesIO()
        image.save(file, "PNG")
        return file.getvalue()
    raise UsageError(f"a picture must be a Pillow image, the bytes of a file or its path, not {type(image).__name__}")


def _part(image: bytes) -> dict[str, Any]:
    kind = next((kind for start, kind in _KINDS.items() if image.startswith(start)), None)
    if kind is None:  # this also keeps other files of this machine from leaking as pictures
        raise UsageError(f"a picture must be a file of one of the types {', '.join(_KINDS.values())}")
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{base64.b64encode(image).decode()}"}}


def _decoded(image: bytes) -> Any:
    try:
        library = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise MissingExtra("pictures need Pillow, which is not installed: pip install pillow") from error
    opened = library.open(io.BytesIO(image))
    opened.load()
    return opened
