"""Qwen2-VL (arXiv 2409.12191), Qwen2.5-VL and Qwen3-VL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from rollenv.agents.vision import VisionFamily, body_that_sees
from rollenv.core.errors import UsageError
from rollenv.core.pictures import Picture

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class QwenVision(VisionFamily):
    """Pictures as grids of patches, with positions of rows and columns (M-RoPE, section 2.1)."""

    mark = "<|image_pad|>"
    around = "<|vision_start|>{}<|vision_end|>"
    words = {"image_token": mark}

    def expanded(self, inputs: Mapping[str, Tensor]) -> str:
        return self.image_token * int(inputs["image_grid_thw"].prod() // self.image_processor.merge_size**2)

    def features(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> list[list[Tensor]]:
        pixels = torch.cat([self.inputs(picture)["pixel_values"] for picture in pictures]).to(model.device)
        grids = self._grids(pictures).to(model.device)
        out = body_that_sees(model).get_image_features(pixels, grids, return_dict=True)
        return [list(out.pooler_output), *map(list, getattr(out, "deepstack_features", None) or ())]

    def positions(
        self, model: PreTrainedModel, kinds: NDArray[np.int64], pictures: Sequence[Picture]
    ) -> NDArray[np.int64]:
        if int((np.diff(kinds, prepend=0) == 1).sum()) != len(pictures):
            raise UsageError(f"two pictures of a prompt are adjacent, without marks between: {pictures!r:.200}")
        row, grids = torch.from_numpy(kinds)[None], self._grids(pictures)
        found = body_that_sees(model).get_rope_index(row, mm_token_type_ids=row, image_grid_thw=grids)[0]
        own: NDArray[np.int64] = found[:, 0].numpy()
        return own

    def _grids(self, pictures: Sequence[Picture]) -> Tensor:
        return torch.cat([self.layout(picture)[2]["image_grid_thw"] for picture in pictures])


class DeepQwenVision(QwenVision):
    """Qwen3-VL, which adds features of pictures to its first layers too (deepstack)."""

    def arguments(
        self, model: PreTrainedModel, texts: Tensor, shown: Tensor, features: Sequence[Tensor]
    ) -> dict[str, Any]:
        seen: Any = BaseModelOutputWithPooling(pooler_output=features[:1])
        seen.deepstack_features = [[level] for level in features[1:]]
        return {"input_ids": texts.masked_fill(shown, self.token), "mm_encoder_outputs": {"image": seen}}
