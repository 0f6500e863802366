"""An agent that plays with vLLM in this process."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollenv.agents.engine_agent import EngineAgent
from rollenv.agents.engines.base import Sampling, attach_vision
from rollenv.agents.engines.vllm import VLLMEngine
from rollenv.agents.gguf import model_at
from rollenv.agents.model_files import loading, reading
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.prompts.session import stop_ids
from rollenv.core.errors import MissingExtra
from rollenv.core.needs import extra

with extra("vllm", "Playing with vLLM"):
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    from rollenv.agents.engines.vllm_local import LocalTransport
    from rollenv.agents.vision import load_vision


def saved_stops(path: str | Path) -> frozenset[int]:
    """Return the end tokens of a model's generation config, if it has one."""
    try:
        ends = GenerationConfig.from_pretrained(path).eos_token_id
    except Exception:  # there is none, or the model's own loader says what is wrong with it
        return frozenset()
    if isinstance(ends, int):
        ends = (ends,)
    return frozenset(ends or ())


def load_engine(path: str | Path, *, chat: bool = True, **options: Any) -> tuple[VLLMEngine, Any]:
    """Load a model into an engine in this process.

    Args:
        chat: whether the end of a message ends a response.
    """
    path = model_at(str(path))
    with reading(path, "a tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(path, **loading(path))
        family = load_vision(path, tokenizer, AutoConfig.from_pretrained(path, **loading(path)), loading(path))
    if family and not importlib.util.find_spec("torchvision"):
        raise MissingExtra("vLLM reads pictures with torchvision, which is not installed: pip install torchvision")
    attach_vision(family, tokenizer)
    stop = stop_ids(tokenizer, chat=chat) | saved_stops(path)
    options = {"skip_tokenizer_init": False} | options  # vLLM reads schemas and grammars with it
    transport = LocalTransport(path, **options)

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(ids))

    return VLLMEngine(transport, stop, model=path, decode=decode, family=family), tokenizer


class VLLMAgent(EngineAgent):
    """Plays with a model that vLLM runs in this process: a :class:`TokenAgent` with updatable weights."""

    engine: VLLMEngine

    @classmethod
    def load(
        cls,
        path: str | Path,
        prompt: StepPrompt | None = None,
        sampling: Sampling | None = None,
        *,
        chat: dict[str, Any] | None = None,
        **options: Any,
    ) -> VLLMAgent:
        """Load a model into a vLLM engine."""
        engine, tokenizer = load_engine(path, chat=prompt is None or prompt.chat, **options)
        return cls(engine, tokenizer, prompt, sampling, **(chat or {}))
