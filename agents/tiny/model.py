"""A language model small enough to train on two CPU cores: Qwen2's architecture, and a tokenizer made on the spot."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch
from tokenizers import pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from rollenv.agents.tiny.settings import TinySize

END = "<|endoftext|>"


def build_tokenizer(corpus: Iterable[str], vocabulary: int) -> Qwen2Tokenizer:
    """A byte-level BPE trained on ``corpus`` with Qwen2's splitting of text into words.

    That splitting is kept because transformers and vLLM rebuild it from the model type when they load a folder.
    """
    tokenizer = Qwen2Tokenizer().backend_tokenizer
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    return Qwen2Tokenizer(vocab=learned["vocab"], merges=merges, padding_side="left")


def build_model(size: TinySize, tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """A model with random weights that follow ``seed`` alone."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.context,
        tie_word_embeddings=True,
        initializer_range=0.05,  # the usual 0.02 suits widths ten times as large and learns more slowly here
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)
