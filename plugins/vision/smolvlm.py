"""SmolVLM (arXiv 2504.05299)."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from transformers import SmolVLMProcessor

from rollenv.agents.vision import VisionFamily


class SmolVision(VisionFamily):
    """Pictures as tiles in rows and columns, and a small one of the whole, with marks between."""

    words = {
        "image_token": "<image>",
        "fake_image_token": "<fake_token_around_image>",
        "global_image_token": "<global-img>",
    }
    processing = {"return_row_col_info": True}

    def __init__(self, image_processor: Any, tokenizer: Any, config: Any, *more: Any):
        super().__init__(image_processor, tokenizer, config, *more)
        side = config.vision_config.image_size // config.vision_config.patch_size // config.scale_factor
        self.settings.setdefault("image_seq_len", side**2)

    def expanded(self, inputs: Mapping[str, Tensor]) -> str:
        tiles = {name: inputs[name].tolist() for name in ("rows", "cols")}
        text: str = SmolVLMProcessor.replace_image_token(SimpleNamespace(**self.settings), tiles, 0)
        return text
