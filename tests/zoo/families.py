"""Model families: tiny random models of transformers' own classes, and their chat templates."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from shapes import SHAPES

#: The published templates, which are in TRL's wheel.
PUBLISHED = next(Path(__file__).parents[2].glob(".bench/trl/lib/python*/site-packages/trl/chat_templates"), None)

SIZE = {
    "hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
HEADS = {"head_dim": 32}
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32,
    "num_key_value_heads": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
}  # fmt: skip
#: Tied weights of a larger scale would make every answer certain.
TIED = {"initializer_range": 0.02}
LINEAR = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1}
GEMMA_4 = HEADS | TIED | {
    "global_head_dim": 64, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 1024,
    "num_kv_shared_layers": 0, "sliding_window": 4096,
}  # fmt: skip
ROTATED = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 4, 4]}}
EYES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}


@dataclass(frozen=True)
class Family:
    """A family: what people call it, its class in transformers, and what is special of its size."""

    name: str
    kind: str
    """The name of its configuration in transformers, without "Config"."""
    template: str
    """A file of TRL's, without its suffix, or one of :data:`shapes.SHAPES`."""
    size: dict[str, Any] = field(default_factory=dict)
    elsewhere: bool = False
    """Whether only other engines play it: the local one has no cache for its layers."""
    vision: dict[str, Any] = field(default_factory=dict)
    """The size of the part that sees, if the text model is a part of one that does."""

    def model(self, vocabulary: int) -> transformers.PreTrainedModel:
        torch.manual_seed(0)
        size = {**SIZE, "vocab_size": vocabulary, **self.size}
        given = {"text_config": size, "vision_config": self.vision} if self.vision else size
        config = getattr(transformers, f"{self.kind}Config")(**given)
        kind = transformers.AutoModelForImageTextToText if self.vision else transformers.AutoModelForCausalLM
        return kind.from_config(config, dtype=torch.float32)

    @property
    def published(self) -> bool:
        """Whether the template is one of TRL's."""
        return self.template not in SHAPES

    @property
    def source(self) -> str | None:
        """The chat template; None if it is one of TRL's, whose wheel is not here."""
        if not self.published:
            return SHAPES[self.template]
        return (PUBLISHED / f"{self.template}.jinja").read_text(encoding="utf-8") if PUBLISHED else None


FAMILIES = [
    Family("Qwen2.5", "Qwen2", "qwen2_5"),
    Family("Qwen3", "Qwen3", "qwen3", HEADS),
    Family("Qwen3-MoE", "Qwen3Moe", "qwen3_instruct_2507", HEADS | EXPERTS),
    Family("Qwen3.5", "Qwen3_5Text", "qwen3_5_think", HEADS | LINEAR, elsewhere=True),
    Family("Qwen3-Next", "Qwen3Next", "qwen3_instruct_2507", HEADS | LINEAR | EXPERTS, elsewhere=True),
    Family("Llama 3", "Llama", "llama3_1", HEADS),
    Family("Llama 4", "Llama4Text", "llama4",
        HEADS | EXPERTS | {"intermediate_size_mlp": 96, "interleave_moe_layer_step": 1}, elsewhere=True),
    Family("Mistral", "Mistral", "mistral", HEADS | {"sliding_window": None}),
    Family("Ministral", "Ministral3", "mistral", HEADS),
    Family("Gemma 2", "Gemma2", "gemma", HEADS | TIED | {"query_pre_attn_scalar": 32}),
    Family("Gemma 3", "Gemma3Text", "gemma3", HEADS | TIED | {"query_pre_attn_scalar": 32, "sliding_window": 4096}),
    Family("Gemma 4", "Gemma4Text", "gemma4_v5", GEMMA_4),
    Family("Gemma 4 E2B", "Gemma4Text", "gemma4",
        GEMMA_4 | {"num_hidden_layers": 4, "num_kv_shared_layers": 2,
                   "layer_types": ["sliding_attention", "full_attention"] * 2}),
    Family("Gemma 4 A4B", "Gemma4Text", "gemma4_v2",
        GEMMA_4 | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}),
    Family("gpt-oss", "GptOss", "gptoss", HEADS | EXPERTS | {"sliding_window": 4096}),
    Family("GLM-4.5", "Glm4Moe", "glm4moe", HEADS | EXPERTS),
    Family("DeepSeek-R1 distilled, Qwen", "Qwen2", "deepseek_r1_distill"),
    Family("DeepSeek-R1 distilled, Llama", "Llama", "deepseek_r1_distill", HEADS),
    Family("DeepSeek-V3", "DeepseekV3", "deepseekv3", EXPERTS | LATENT),
    Family("Kimi-K2", "DeepseekV3", "kimi", EXPERTS | LATENT),
    Family("Phi-3", "Phi3", "phi3"),
    Family("Phi-4", "Phi3", "phi4"),
    Family("Phi-3.5-MoE", "Phimoe", "phi3_5", EXPERTS),
    Family("SmolLM3", "SmolLM3", "smollm3"),
    Family("OLMo 3", "Olmo3", "olmo3", {"sliding_window": 4096}),
    Family("Granite 4", "GraniteMoeHybrid", "granite",
        EXPERTS | MAMBA | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 32}, elsewhere=True),
    Family("Nemotron 3", "NemotronH", "nemotron_3_nano",
        HEADS | EXPERTS | {"hybrid_override_pattern": "M*", "mamba_num_heads": 4, "mamba_head_dim": 32,
                           "ssm_state_size": 16, "n_groups": 1}, elsewhere=True),
    Family("Command A", "Cohere2", "cohere2", {"sliding_window": 4096}),
    Family("LFM2", "Lfm2", "lfm2_v2", {"layer_types": ["conv", "full_attention"]}, elsewhere=True),
    Family("LFM2.5-MoE", "Lfm2Moe", "lfm2_2_5",
        EXPERTS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}, elsewhere=True),
    Family("Hunyuan", "HunYuanDenseV1", "hunyuan", HEADS),
    Family("Hunyuan-MoE", "HunYuanMoEV1", "hunyuan", HEADS | EXPERTS | {"moe_topk": 2}),
    Family("MiniMax M2", "MiniMaxM2", "minimax", HEADS | EXPERTS),
    Family("MiniMax-Text", "MiniMax", "minimax",
        HEADS | EXPERTS | {"layer_types": ["linear_attention", "full_attention"]}, elsewhere=True),
    Family("Gemma 3, with pictures", "Gemma3", "gemma3",
        HEADS | TIED | {"query_pre_attn_scalar": 32, "sliding_window": 4096}, vision=EYES),
    Family("Mistral Small 3.2", "Mistral3", "mistral", HEADS | {"model_type": "mistral", "sliding_window": None},
        vision=EYES | {"model_type": "pixtral", "patch_size": 14, "head_dim": 8}),
    Family("Qwen3-VL", "Qwen3VL", "qwen3_vl", HEADS | ROTATED,
        vision={"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 128,
              "deepstack_visual_indexes": [0]}),
    # Not asked for, tried afterwards.
    Family("EXAONE 4", "Exaone4", "exaone", HEADS | {"sliding_window": 4096}),
    Family("Seed-OSS", "SeedOss", "seed", HEADS),
    Family("ERNIE 4.5 MoE", "Ernie4_5_Moe", "ernie",
        HEADS | EXPERTS | {"moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 0, "moe_layer_end_index": 1}),
    Family("dots.llm1", "Dots1", "dots", HEADS | EXPERTS),
    Family("OLMoE", "Olmoe", "olmoe", EXPERTS),
    Family("StarCoder2", "Starcoder2", "starcoder", {"sliding_window": None}),
    Family("Falcon-H1", "FalconH1", "phi4", HEADS | MAMBA | {"mamba_d_ssm": 256}, elsewhere=True),
]  # fmt: skip
#: Templates that do not tell what a model would write: histories have no calls, or the opening closes a thought.
_SILENT = ("lfm2", "qwen3_5_nothink", "diffusion_gemma")
#: The templates of TRL's that no family above has.
OTHERS = [
    Family(file.stem, "Qwen2", file.stem)
    for file in sorted(PUBLISHED.glob("*.jinja") if PUBLISHED else ())
    if not file.stem.endswith(("_training", *_SILENT)) and file.stem not in {family.template for family in FAMILIES}
]
