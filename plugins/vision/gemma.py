"""Gemma 3 (arXiv 2503.19786)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import Gemma3Processor

from rollenv.agents.vision import VisionFamily

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class GemmaVision(VisionFamily):
    """Pictures of a fixed number of tokens, which attend to each other, between line breaks."""

    mark = "<start_of_image>"
    words = {"image_token": "<image_soft_token>"}
    mutual = True

    def expanded(self, inputs: Mapping[str, Tensor]) -> str:
        parts = self.image_token * self.config.mm_tokens_per_image
        own = SimpleNamespace(full_image_sequence=f"\n\n{self.mark}{parts}<end_of_image>\n\n")
        text: str = Gemma3Processor.replace_image_token(own, {"num_crops": inputs["num_crops"].tolist()}, 0)
        return text

    def arguments(
        self, model: PreTrainedModel, texts: Tensor, shown: Tensor, features: Sequence[Tensor]
    ) -> dict[str, Any]:
        return super().arguments(model, texts, shown, features) | {"token_type_ids": shown.long()}
