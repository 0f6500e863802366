"""A model small enough to train on two CPU cores, with Qwen2's or Qwen2-VL's architecture and its own tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import (
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from rollenv.agents.engines.base import attach_vision
from rollenv.agents.tiny.settings import TinySize
from rollenv.agents.vision import GROUP, VisionFamily, require_transformers
from rollenv.core.needs import extra
from rollenv.core.pictures import Picture
from rollenv.core.plugins import load

END = "<|endoftext|>"


#: Tokens at the beginning of a chat message; END is at its end.
_ROLES = tuple(f"<|{role}|>" for role in ("system", "user", "assistant", "tool"))

#: Tokens around and in the place of pictures.
_PICTURE = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")

_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{{ part['text'] if part['type'] == 'text' else '"
    + "".join(_PICTURE[:3])
    + "' }}{% endfor %}{% endif %}{{ '"
    + END
    + "' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer(
    corpus: Iterable[str], vocabulary: int, *, chat: bool = False, sees: bool = False
) -> Qwen2Tokenizer:
    """Train a byte-level BPE tokenizer with Qwen2's pre-tokenizer.

    The pre-tokenizer is Qwen2's because transformers and vLLM rebuild it from the model type when they load a folder.
    """
    more = (*(_ROLES if chat else ()), *(_PICTURE if sees else ()))
    tokenizer = Qwen2Tokenizer().backend_tokenizer
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, *more],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    made = Qwen2Tokenizer(vocab=learned["vocab"], merges=merges, padding_side="left")
    if more:
        made.add_special_tokens({"additional_special_tokens": list(more)})
    if chat:
        made.chat_template = _TEMPLATE
    return made


def build_model(size: TinySize, tokenizer: Qwen2Tokenizer, seed: int) -> PreTrainedModel:
    """Build a model with random weights that depend only on the seed; it sees if its tokenizer has the tokens."""
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "max_position_embeddings": size.context,
        "tie_word_embeddings": True,
        "initializer_range": 0.05,  # the usual 0.02 is for ten times larger widths and learns more slowly here
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if _PICTURE[1] in tokenizer.get_vocab():
            return _seeing(shape, size, tokenizer)
        if not size.experts:
            return Qwen2ForCausalLM(Qwen2Config(**shape))
        experts = {"moe_intermediate_size": size.intermediate, "num_experts": size.experts, "norm_topk_prob": True}
        chosen = {"num_experts_per_tok": min(2, size.experts), "head_dim": size.hidden // size.heads}
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **experts, **chosen))


def picture_tokens(image: Picture, size: TinySize) -> int:
    """Return the number of a picture's tokens, with those around it."""
    return round(image.width / size.patch) * round(image.height / size.patch) + 2


def _seeing(shape: dict[str, Any], size: TinySize, tokenizer: Qwen2Tokenizer) -> PreTrainedModel:
    """Build a Qwen2-VL, and let its tokenizer see too."""
    require_transformers()  # before a training whose model could not be loaded
    with extra("train", "A model that sees"):
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    half = size.hidden // size.heads // 2
    sections = [half - 2 * (3 * half // 8), 3 * half // 8, 3 * half // 8]
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": sections}
    names = ("vision_start_token_id", "image_token_id", "vision_end_token_id", "video_token_id")
    vision = {
        "depth": size.vision_layers,
        "embed_dim": size.hidden // 2,
        "hidden_size": size.hidden,
        "mlp_ratio": 2,
        "num_heads": size.heads,
        "spatial_merge_size": 1,  # a patch is a token
        "temporal_patch_size": 1,
        "patch_size": size.patch,
        "initializer_range": shape["initializer_range"],
    }
    tokens = dict(zip(names, tokenizer.convert_tokens_to_ids(list(_PICTURE)), strict=True))
    config = Qwen2VLConfig(text_config={**shape, "rope_parameters": rope}, vision_config=vision, **tokens)
    config.tie_word_embeddings = True
    model = Qwen2VLForConditionalGeneration(config)
    pixels = {"shortest_edge": size.patch**2, "longest_edge": size.context * size.patch**2}
    own = {"merge_size": 1, "temporal_patch_size": 1, "patch_size": size.patch}
    family: VisionFamily = load(GROUP, config.model_type)(
        Qwen2VLImageProcessorPil(size=pixels, **own), tokenizer, config
    )
    attach_vision(family, model, tokenizer)
    return model
