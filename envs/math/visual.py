"""Mathematics with pictures: Geometry3K, GEOQA and similar sets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.picture_forms import pil
from rollenv.envs.data.row_pictures import pictures_of
from rollenv.envs.data.rows import Row, folder_of
from rollenv.envs.math.env import MathEnv
from rollenv.envs.math.grade import SECONDS


class MathVisualEnv(MathEnv):
    """A problem with pictures: ``info["images"]`` at ``reset``. :attr:`images` are the same as Pillow images.

    A cell has one picture, a list of them, or nothing. A picture is a Pillow image, an array, the bytes of a file, a
    path, a data URL, or a dict of ``bytes`` and ``path``, as in parquet files. Paths are relative to the folder of the
    data set.
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
        self.folder = folder_of(dataset_name or "")

    @property
    def images(self) -> list[Any]:
        """The pictures of the current problem, as Pillow images."""
        return [pil(image) for image in pictures_of(self.row.get(self.image_key), self.folder)]
