"""Tiny models of the families that see, with chat templates of their shapes, and pictures."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from rollenv.agents.engines.base import Sampling, attach_vision
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt, StepPrompt
from rollenv.agents.tiny.model import build_tokenizer
from rollenv.agents.vision import GROUP, NEEDED
from rollenv.core.pictures import Picture, picture
from rollenv.core.plugins import load

CORPUS = ["look at this: what do you see here? go up, down, left or right\n" * 9]

# A default system prompt; pictures in marks of their own.
QWEN = """
{%- if messages[0].role != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

# Parts only; the colon of a role has no space before a picture.
SMOL = """<|im_start|>
{%- for message in messages -%}
{{- message.role | capitalize + (':' if message.content[0].type == 'image' else ': ') -}}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{- '<image>' -}}{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{{- '<end_of_utterance>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}
"""

# Parts are trimmed; there is no system prompt of its own.
GEMMA = """
{%- for message in messages -%}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' -}}
{%- if message.content is string -%}{{- message.content | trim -}}
{%- else -%}{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{- '<start_of_image>' -}}{%- else -%}{{- part.text | trim -}}{%- endif -%}
{%- endfor -%}{%- endif -%}
{{- '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""

# Pictures of tool messages are left out, as by templates that join their texts.
DEAF_TOOLS = QWEN.replace(
    "part.type == 'image'", "part.type == 'image' and message.role == 'tool' -%}\n{%- elif part.type == 'image'"
)

_TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 37,
    "tie_word_embeddings": True,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1]}
_VISION = {"depth": 2, "num_heads": 4, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
_VISION |= {"hidden_size": 32, "initializer_range": 0.3}
_QWEN = {
    "qwen2_vl": {"embed_dim": 32, "mlp_ratio": 4},
    "qwen2_5_vl": {"out_hidden_size": 32, "intermediate_size": 64, "fullatt_block_indexes": [1], "window_size": 56},
    "qwen3_vl": {
        "out_hidden_size": 32,
        "intermediate_size": 64,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    },
}

_PROCESSORS = {
    "qwen2_vl": "Qwen2VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_vl": "Qwen3VLProcessor",
    "smolvlm": "SmolVLMProcessor",
    "gemma3": "Gemma3Processor",
}
FAMILY = tuple(_PROCESSORS)
_PROCESSORS["llava"] = "LlavaProcessor"  # of the page "Extend"


@functools.cache
def drawn(number: int, width: int = 84, height: int = 56) -> Picture:
    """Draw a picture of random colours."""
    pixels = np.random.default_rng(number).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return picture(pixels)


def skip_older_transformers() -> None:
    if Version(transformers.__version__) < Version(NEEDED):
        pytest.skip(f"needs transformers >= {NEEDED}")


def seeing(
    family: str = "qwen2_vl", prompt: StepPrompt | ChatPrompt | None = None, *, template: str = "", **sampling: Any
) -> LocalAgent:
    """Build an agent of a family with random weights."""
    skip_older_transformers()
    model, tokenizer = {"smolvlm": _smol, "gemma3": _gemma, "llava": _llava}.get(family, lambda: _qwen(family))()
    if template:
        tokenizer.chat_template = template
    return LocalAgent(model, tokenizer, prompt or ChatPrompt(), Sampling(**{"max_new_tokens": 6, **sampling}))


def _qwen(family: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    tokenizer = build_tokenizer(CORPUS, 300, sees=True)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = QWEN
    kinds = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}
    names = ("vision_start", "image", "vision_end", "video")
    texts = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
    ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(text) for name, text in zip(names, texts, strict=True)}
    config = getattr(transformers, f"{kinds[family]}Config")(
        text_config={**_TEXT, "vocab_size": len(tokenizer), "rope_parameters": dict(_ROPE)},
        vision_config={**_VISION, **_QWEN[family]},
        **ids,
    )
    config.tie_word_embeddings = True
    patch = {"patch_size": 14, "size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 64}}
    return _made(
        family, config, f"{kinds[family]}ForConditionalGeneration", tokenizer, Qwen2VLImageProcessorPil(**patch)
    )


def _smol() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    tokenizer = build_tokenizer(CORPUS, 300)
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    more = ["<image>", "<fake_token_around_image>", "<global-img>", "<|im_start|>", "<end_of_utterance>", *rows]
    tokenizer.add_special_tokens({"additional_special_tokens": more})
    tokenizer.chat_template = SMOL
    config = transformers.SmolVLMConfig(
        text_config={**_TEXT, "vocab_size": len(tokenizer), "model_type": "llama"},
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "patch_size": 14, "image_size": 56, "initializer_range": 0.3,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    how = {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}
    return _made("smolvlm", config, "SmolVLMForConditionalGeneration", tokenizer, SmolVLMImageProcessorPil(**how))


def _gemma() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    tokenizer = build_tokenizer(CORPUS, 300)
    more = ["<start_of_image>", "<image_soft_token>", "<end_of_image>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer.add_special_tokens({"additional_special_tokens": more})
    tokenizer.chat_template = GEMMA
    for name, token in zip(("boi_token", "image_token", "eoi_token"), more, strict=False):
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    config = transformers.Gemma3Config(
        text_config={**_TEXT, "vocab_size": len(tokenizer), "sliding_window": 512, "query_pre_attn_scalar": 8},
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "patch_size": 14, "image_size": 56, "initializer_range": 0.3,
        },
        image_token_id=tokenizer.image_token_id,
        mm_tokens_per_image=4,
        tie_word_embeddings=True,
    )  # fmt: skip
    how = {"size": {"height": 56, "width": 56}}
    return _made("gemma3", config, "Gemma3ForConditionalGeneration", tokenizer, Gemma3ImageProcessorPil(**how))


def _llava() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    tokenizer = build_tokenizer(CORPUS, 300)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>", "<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = QWEN.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")
    config = transformers.LlavaConfig(
        text_config={**_TEXT, "vocab_size": len(tokenizer), "model_type": "llama"},
        vision_config={
            "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "patch_size": 14, "image_size": 56, "projection_dim": 32,
            "initializer_range": 0.3,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
        tie_word_embeddings=True,
    )  # fmt: skip
    how = {"size": {"height": 56, "width": 56}, "crop_size": {"height": 56, "width": 56}}
    return _made("llava", config, "LlavaForConditionalGeneration", tokenizer, LlavaImageProcessorPil(**how))


def _made(
    family: str, config: Any, kind: str, tokenizer: PreTrainedTokenizerBase, image_processor: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, kind)(config).eval()
    eyes = load(GROUP, family)(image_processor, tokenizer, config)
    attach_vision(eyes, model, tokenizer)
    return model, tokenizer


def processor(agent: LocalAgent) -> Any:
    """Return the family's own processor, which cannot be made here without torchvision, for its part for videos."""
    eyes, family = agent.model.rollenv_vision, agent.model.config.model_type
    kind = getattr(transformers, _PROCESSORS[family])
    module = __import__(kind.__module__, fromlist=["x"])
    module.num2words = getattr(module, "num2words", None) or str  # for videos too
    free = type("Free", (kind,), {"check_argument_for_proper_class": lambda self, name, argument: type(argument)})
    how = {"image_seq_len": 4} if family == "smolvlm" else {}
    if family == "llava":
        tokens = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
        return free(eyes.image_processor, agent.tokenizer, chat_template=agent.tokenizer.chat_template, **tokens)
    if family == "gemma3":
        return free(
            eyes.image_processor, agent.tokenizer, chat_template=agent.tokenizer.chat_template, image_seq_length=4
        )
    videos = SimpleNamespace(num_frames=1, fps=1)
    return free(eyes.image_processor, agent.tokenizer, videos, chat_template=agent.tokenizer.chat_template, **how)
