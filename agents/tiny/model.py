"""A language model small enough to train on two CPU cores, with Qwen2's architecture and its own tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch
from tokenizers import pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

from rollenv.agents.tiny.settings import TinySize

END = "<|endoftext|>"


#: Tokens at the beginning of a chat message; END is at its end.
_ROLES = tuple(f"<|{role}|>" for role in ("system", "user", "assistant", "tool"))

_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '"
    + END
    + "' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer(corpus: Iterable[str], vocabulary: int, *, chat: bool = False) -> Qwen2Tokenizer:
    """Train a byte-level BPE tokenizer with Qwen2's pre-tokenizer.

    The pre-tokenizer is Qwen2's because transformers and vLLM rebuild it from the model type when they load a folder.
    """
    roles = _ROLES if chat else ()
    tokenizer = Qwen2Tokenizer().backend_tokenizer
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, *roles],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    made = Qwen2Tokenizer(vocab=learned["vocab"], merges=merges, padding_side="left")
    if chat:
        made.add_special_tokens({"additional_special_tokens": list(roles)})
        made.chat_template = _TEMPLATE
    return made


def build_model(size: TinySize, tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM | Qwen3MoeForCausalLM:
    """Build a model with random weights that depend only on the seed."""
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
        if not size.experts:
            return Qwen2ForCausalLM(Qwen2Config(**shape))
        experts = {"moe_intermediate_size": size.intermediate, "num_experts": size.experts, "norm_topk_prob": True}
        chosen = {"num_experts_per_tok": min(2, size.experts), "head_dim": size.hidden // size.heads}
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **experts, **chosen))
