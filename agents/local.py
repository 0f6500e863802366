"""An agent that runs a Hugging Face causal language model in this process."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollenv.agents.base import Agent, EnvHandle, OwnsEngine
from rollenv.agents.engines.base import Sampling, attach_vision, vision_of
from rollenv.agents.engines.token_cache import Remembered
from rollenv.agents.gguf import model_at
from rollenv.agents.model_files import loading, only_adapter, reading
from rollenv.agents.prompts import ChatPrompt, StepPrompt
from rollenv.agents.prompts.chat_format import ChatFormat
from rollenv.agents.prompts.conversation import Conversation
from rollenv.agents.prompts.session import AGENT_FILE, ResponseText, TokenSession, plain_ids, saved_format, stop_ids
from rollenv.agents.prompts.step import StepEpisode, as_text
from rollenv.core.errors import UsageError
from rollenv.core.needs import extra
from rollenv.core.pictures import Picture

with extra("train", "Running a model"):
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    from rollenv.agents.engines.local import LocalEngine, generation_stops, longest_context
    from rollenv.agents.vision import load_vision

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclasses.dataclass(slots=True)
class NoEngine:
    """Facts about a model that another engine plays."""

    stop: frozenset[int]
    max_context: int
    version: int = 0


class LocalAgent(OwnsEngine, Agent):
    """Plays with a causal language model: one self-contained prompt per turn, or the whole episode as a chat.

    Concurrent requests of all sessions are batched, and equal prompts are computed once. Token ids and
    log-probabilities are the sampled ones; responses are never tokenised again.

    Args:
        plays: False if the model is only trained here, which may then be of a kind that the local engine cannot run.
    """

    engine: Any
    """A :class:`~rollenv.agents.engines.local.LocalEngine`, or :class:`NoEngine`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prompt: StepPrompt | ChatPrompt | None = None,
        sampling: Sampling | None = None,
        *,
        plays: bool = True,
    ):
        self.model, self.tokenizer = model, tokenizer
        self.prompt: StepPrompt | ChatPrompt = prompt or StepPrompt()
        self.sampling = sampling or Sampling()
        stop = stop_ids(tokenizer, chat=self._chats)
        if plays:
            self.engine = LocalEngine(model, stop, decode=lambda ids: str(tokenizer.decode(ids)))
        else:
            self.engine = NoEngine(
                stop | generation_stops(getattr(model, "generation_config", None)), longest_context(model.config)
            )
        self._sessions = itertools.count()
        self._format: ChatFormat | None = None
        self._ids = Remembered(self._encode)
        template = self.prompt.template if isinstance(self.prompt, StepPrompt) else ""
        self._response_text = ResponseText(tokenizer, template)
        self._texts = Remembered(self._response_text.decode)

    @classmethod
    def load(
        cls, path: str | Path, *, sampling: Sampling | None = None, plays: bool = True, **settings: Any
    ) -> LocalAgent:
        """Load a model and the prompt format saved with it.

        Args:
            path: model folder, folder of a run, GGUF file, or name on the hub.
            sampling: how answers are drawn; by default as saved, with these ``settings`` of :class:`Sampling` changed.
            plays: see the class.
        """
        path = model_at(str(path))
        prompt, saved = saved_format(path, **settings)
        how = loading(path)
        with reading(path):
            model = text_model("from_pretrained", path, dtype="auto", **how)
            tokenizer = AutoTokenizer.from_pretrained(path, **how)
            family = load_vision(path, tokenizer, model.config, how)
        if hasattr(model, "peft_config"):
            raise UsageError(only_adapter(path))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        attach_vision(family, model, tokenizer)
        return cls(model.to(device), tokenizer, prompt, sampling or saved, plays=plays)

    def save(self, path: str | Path) -> None:
        """Write weights, tokenizer and prompt format for transformers, vLLM and :meth:`load`.

        The generation config gets the end tokens of the chat template too, at which the model was trained to stop.
        """
        config = getattr(self.model, "generation_config", None)
        if config is not None and self._chats:
            ends = generation_stops(config) | stop_ids(self.tokenizer) - {self.tokenizer.pad_token_id}
            own = {self.tokenizer.eos_token_id} - {None}
            config.eos_token_id = [*own, *sorted(ends - own)] or None
        self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        if family := vision_of(self.model):
            family.save(path)
        about = {"prompt": dataclasses.asdict(self.prompt), "sampling": dataclasses.asdict(self.sampling)}
        Path(path, AGENT_FILE).write_text(json.dumps(about, indent=2) + "\n")

    @property
    def vocabulary(self) -> dict[str, int]:
        """The ids of the tokenizer's tokens."""
        return dict(self.tokenizer.get_vocab())

    def weights_changed(self) -> None:
        """Invalidate caches after the model was trained in place."""
        self.engine.weights_changed()

    def start(self, env: EnvHandle, seed: int) -> TokenSession:
        play = StepEpisode(self.prompt) if isinstance(self.prompt, StepPrompt) else self.conversation()
        rng, number = random.Random(seed), next(self._sessions)
        return TokenSession(
            self.engine,
            play,
            self,
            self.sampling,
            rng,
            number,
            max_prompt=self.prompt.max_tokens,
            max_observation=self.prompt.max_observation,
        )

    def conversation(self) -> Conversation:
        """Start a chat with the prompt's system message."""
        if self._format is None:
            self._format = ChatFormat.from_settings(self.tokenizer, self.prompt.template_args)
        prompt = self.prompt if isinstance(self.prompt, ChatPrompt) else ChatPrompt()
        context = self.engine.max_context
        return Conversation(
            self._format,
            prompt.system or None,
            "env" if prompt.tools == "template" else None,
            max_context=context,
            thoughts=prompt.thoughts,
            examples=prompt.examples,
        )

    @property
    def _chats(self) -> bool:
        return isinstance(self.prompt, ChatPrompt) or self.prompt.chat

    @property
    def sees(self) -> bool:
        """False if the model reads texts only."""
        return vision_of(self.model) is not None

    def encode(self, text: str, images: tuple[Picture, ...] = ()) -> tuple[int, ...]:
        """Return the token ids of a prompt text, with pictures at its marks or before it."""
        return self._encode(text, images) if images else self._ids(text)

    def _encode(self, text: str, images: tuple[Picture, ...] = ()) -> tuple[int, ...]:
        if self._chats and (self.tokenizer.chat_template or self.prompt.template_args):
            return ChatFormat.from_settings(self.tokenizer, self.prompt.template_args).prompt(
                text, self.prompt.examples, images
            )
        return plain_ids(as_text(self.prompt.examples, text), images, self.tokenizer)

    def decode(self, ids: tuple[int, ...]) -> str:
        """Return the text of a response."""
        return self._texts(ids)

    def opens_thought(self, prompt: tuple[int, ...]) -> bool:
        """Return whether the prompt ends inside a thought."""
        return self._response_text.opens_thought(prompt)


def text_model(make: Literal["from_pretrained", "from_config"], given: Any, **how: Any) -> PreTrainedModel:
    """Load or create a causal language model, or one that also sees, whose text is used (Mistral Small, Qwen3-VL)."""
    try:
        return getattr(AutoModelForCausalLM, make)(given, **how)
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        try:
            return getattr(AutoModelForImageTextToText, make)(given, **how)
        except ValueError:
            raise error from None
