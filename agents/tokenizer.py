"""Tokenizers of models, for wrappers that count or write tokens."""

from __future__ import annotations

import functools
from typing import Any

from rollenv.agents.gguf import model_at
from rollenv.agents.model_files import loading, reading
from rollenv.core.needs import extra


@functools.lru_cache(maxsize=8)
def tokenizer_at(path: str) -> Any:
    """Load a model's tokenizer. ``path``: see :func:`~rollenv.agents.gguf.model_at`."""
    with extra("train", "A tokenizer"):
        from transformers import AutoTokenizer
    folder = model_at(path)
    how = loading(folder)
    with reading(folder, "a tokenizer"):
        return AutoTokenizer.from_pretrained(folder, **how)
