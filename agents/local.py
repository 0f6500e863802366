"""An agent that runs a Hugging Face causal language model in this process."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollenv.agents.base import EnvHandle
from rollenv.agents.caches import Remembered
from rollenv.agents.generation import Sampling
from rollenv.agents.prompts import StepPrompt
from rollenv.agents.token_session import AGENT_FILE, TokenSession, saved_format, stop_ids
from rollenv.core import MissingExtra, UsageError

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rollenv.agents.engine import LocalEngine
except ImportError as error:
    raise MissingExtra(f"local models need the train extra: pip install 'rollenv[train]' ({error})") from error

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class LocalAgent:
    """Plays with a causal language model, one self-contained prompt a turn.

    Requests of all sessions that are waiting at the same time are answered in one batch, and equal prompts are computed
    once. Token ids and log-probabilities are those that the model drew; nothing is tokenised a second time.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prompt: StepPrompt | None = None,
        sampling: Sampling | None = None,
    ):
        self.model, self.tokenizer = model, tokenizer
        self.prompt = prompt or StepPrompt()
        self.sampling = sampling or Sampling()
        stop = stop_ids(tokenizer, chat=self.prompt.chat)
        self.engine = LocalEngine(model, stop, decode=lambda ids: str(tokenizer.decode(ids)))
        self._sessions = itertools.count()
        self._ids = Remembered(self._encode)
        self._texts = Remembered(self._decode)

    @classmethod
    def load(cls, path: str | Path, **sampling: Any) -> LocalAgent:
        """Load a model folder or hub name, and the prompt format saved beside it; ``sampling`` overrides the saved.

        Raises:
            UsageError: if the folder holds no model.
        """
        prompt, drawing = saved_format(path, **sampling)
        if not Path(path).exists() and str(path).count("/") != 1:
            raise UsageError(f"cannot load a model: there is no folder {str(path)!r}, and a hub name reads OWNER/NAME")
        try:
            model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
            tokenizer = AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot load a model from {str(path)!r}: {error}") from error
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(model.to(device), tokenizer, prompt, drawing)

    def save(self, path: str | Path) -> None:
        """Write weights, tokenizer and prompt format, so that transformers, vLLM and :meth:`load` find them."""
        self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        about = {"prompt": dataclasses.asdict(self.prompt), "sampling": dataclasses.asdict(self.sampling)}
        Path(path, AGENT_FILE).write_text(json.dumps(about, indent=2) + "\n")

    @property
    def version(self) -> int:
        """Counts the updates of the weights."""
        return self.engine.version

    @version.setter
    def version(self, version: int) -> None:
        self.engine.version = version

    def weights_changed(self) -> None:
        """Tell the agent that its model was trained: what was computed before no longer holds."""
        self.engine.weights_changed()

    async def suspend(self) -> None:
        await self.engine.suspend()

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]] | None = None) -> None:
        await self.engine.update_weights(weights)

    async def resume(self) -> None:
        await self.engine.resume()

    def start(self, env: EnvHandle, seed: int) -> TokenSession:
        return TokenSession(self.engine, self.prompt, self, self.sampling, random.Random(seed), next(self._sessions))

    def encode(self, text: str) -> tuple[int, ...]:
        """The token ids of a prompt text."""
        return self._ids(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        if self.prompt.chat and self.tokenizer.chat_template:
            message = [{"role": "user", "content": text}]
            text = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: tuple[int, ...]) -> str:
        """The text of a response."""
        return self._texts(ids)

    def _decode(self, ids: tuple[int, ...]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))
