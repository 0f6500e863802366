"""An episode of a model that draws tokens: from what the environment says to a prompt, and back to an action."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rollenv.agents.base import Action, ContextFull, EnvHandle, Session
from rollenv.agents.chat_format import ChatFormat, well_formed
from rollenv.agents.conversation import Conversation
from rollenv.agents.generation import Engine, Ids, Sampling
from rollenv.agents.prompts import StepPrompt
from rollenv.core import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Saved beside the weights, so that an evaluation prompts a model the way it was trained.
AGENT_FILE = "rollenv_agent.json"

#: What ends a thought.
THOUGHT_END = "</think>"


class Codec(Protocol):
    """From texts to tokens and back."""

    def encode(self, text: str) -> Ids:
        """A prompt that consists of this text (as a user's message, where the model wants a chat)."""
        ...

    def decode(self, ids: Ids) -> str:
        """The text of a response, without special tokens."""
        ...


@dataclass(slots=True)
class TokenSession(Session):
    """Plays one episode over any engine.

    What the model says goes to the environment as it is, without its special tokens: environments parse actions, decide
    what is invalid and say what that costs. One thing is cut: with ``cut_thoughts``, all up to the last ``</think>``
    and the white space behind it. A thought that never ends is not cut, and so is no valid action in most environments.
    What was cut stays in the tokens.

    Args:
        engine: draws the responses. A prompt and its response never have more tokens than it allows.
        play: a prompt of bounded length made anew every turn, or the chat that the episode becomes.
        codec: for the texts.
        sampling: how to draw.
        rng: the private stream of the episode.
        number: the session's number with the engine, by which it keeps what it has computed from turn to turn.
        cut_thoughts: see above.
    """

    engine: Engine
    play: StepPrompt | Conversation
    codec: Codec
    sampling: Sampling
    rng: random.Random
    number: int = -1
    cut_thoughts: bool = True
    _instructions: str | None = None
    _turns: list[tuple[str, str]] = field(default_factory=list)

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        prompt = self._prompt(observation, info)
        room = self.engine.max_context - len(prompt)
        if room < 1:
            raise ContextFull(
                f"the prompt has {len(prompt)} tokens and the model's context is {self.engine.max_context}; "
                "shorten the prompt, or play a model with a longer context"
            )
        sampling = self.sampling
        if sampling.max_new_tokens > room:
            sampling = dataclasses.replace(sampling, max_new_tokens=room)
        response = await self.engine.generate(prompt, sampling, self.rng, session=self.number)
        ids = tuple(response.ids)
        text = self._action(ids)
        if isinstance(self.play, Conversation):
            self.play.answer(ids)
        elif self.play.history_length:
            self._turns.append((observation, text))
        versions = response.versions
        mixed = len(versions) > 1 and versions[0] != versions[-1]  # they only grow
        return Action(
            text,
            prompt,
            ids,
            tuple(response.logprobs),
            versions[0] if versions else self.engine.version,
            tuple(versions) if mixed else (),
            response.finish,
        )

    def close(self) -> None:
        if self.number >= 0:
            self.engine.release(self.number)

    def _prompt(self, observation: str, info: dict[str, Any]) -> Ids:
        if isinstance(self.play, Conversation):
            self.play.add("tool" if info.get("use_tool") else "user", shown(observation, info))
            return self.play.prompt()
        if self._instructions is None:
            self._instructions = observation
        return self.codec.encode(self.play.render(self._instructions, self._turns, observation, info))

    def _action(self, ids: Ids) -> str:
        said = self.codec.decode(ids)
        if self.cut_thoughts and THOUGHT_END in said:
            return said.rpartition(THOUGHT_END)[2].lstrip()
        return said


def shown(observation: str, info: dict[str, Any]) -> str:
    """An observation with the state that ``info`` carries for the reader: ``prefix`` before it, ``suffix`` behind."""
    prefix, suffix = str(info.get("prefix", "")), str(info.get("suffix", ""))
    parts = [prefix, observation, "" if observation.endswith(suffix) else suffix]
    return "\n".join(part.removesuffix("\n") for part in parts[:-1] if part) + (f"\n{parts[-1]}" if parts[-1] else "")


class TokenizerCodec:
    """Texts through a Hugging Face tokenizer.

    Args:
        tokenizer: of the model.
        chat: wrap prompts as a user's message with the chat template.

    Raises:
        UsageError: with ``chat`` and no template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat: bool = True):
        self.tokenizer = tokenizer
        self.format = ChatFormat.of(tokenizer) if chat else None
        added = {str(token): i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._thought_end = added.get(THOUGHT_END)

    def encode(self, text: str) -> Ids:
        """A prompt's tokens."""
        if self.format:
            return self.format.prompt(text)
        return tuple(self.tokenizer.encode(well_formed(text), add_special_tokens=False))

    def decode(self, ids: Ids) -> str:
        """A response's text; the end of a thought is shown also where it is a special token."""
        if self._thought_end in ids:
            at = len(ids) - 1 - ids[::-1].index(self._thought_end)
            return self._plain(ids[:at]) + THOUGHT_END + self._plain(ids[at + 1 :])
        return self._plain(ids)

    def _plain(self, ids: Ids) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def stop_ids(tokenizer: PreTrainedTokenizerBase, chat: bool = True) -> frozenset[int]:
    """The tokens that end a response: the tokenizer's own, and in a chat the one that the template closes it with."""
    ends = {i for i in (tokenizer.eos_token_id, tokenizer.pad_token_id) if i is not None}
    if chat and tokenizer.chat_template:
        with contextlib.suppress(UsageError):  # a template that shows no answers closes none
            ends |= ChatFormat.of(tokenizer).stop_ids
    return frozenset(ends)


class TokenAgent:
    """Plays with any engine: by a bounded prompt a turn, or (without ``prompt``) by a chat over the whole episode.

    Args:
        engine: draws the responses.
        tokenizer: of its model.
        prompt: how to make a prompt for each turn; None for a chat.
        sampling: how to draw.
        system: the chat's system prompt.
        tools: schemas for the chat template.
        cut_thoughts: see :class:`TokenSession`.
        template_args: for the chat template, such as ``enable_thinking=False``.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: PreTrainedTokenizerBase,
        prompt: StepPrompt | None = None,
        sampling: Sampling | None = None,
        *,
        system: str | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        cut_thoughts: bool = True,
        **template_args: Any,
    ):
        self.engine, self.prompt, self.sampling = engine, prompt, sampling or Sampling()
        self.codec = TokenizerCodec(tokenizer, prompt is not None and prompt.chat)
        self.format = None if prompt else ChatFormat.of(tokenizer, **template_args)
        self.system, self.tools, self.cut_thoughts = system, tools, cut_thoughts
        self._numbers = itertools.count()

    @property
    def version(self) -> int:
        """Counts the updates of the weights."""
        return self.engine.version

    def start(self, env: EnvHandle, seed: int) -> TokenSession:
        rng, number = random.Random(seed), next(self._numbers)
        play = self.prompt or self._chat()
        return TokenSession(self.engine, play, self.codec, self.sampling, rng, number, self.cut_thoughts)

    def _chat(self) -> Conversation:
        assert self.format is not None
        return Conversation(self.format, self.system, self.tools, self.engine.max_context)


def saved_format(path: str | Path, **sampling: Any) -> tuple[StepPrompt | None, Sampling]:
    """How the model of a folder was prompted and sampled when it was saved; no prompt where nothing is told.

    Args:
        path: a model's folder or hub name.
        sampling: fields of :class:`Sampling` that override the saved ones.
    """
    file = Path(path) / AGENT_FILE
    saved = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    prompt = StepPrompt(**saved["prompt"]) if "prompt" in saved else None
    return prompt, Sampling(**{**saved.get("sampling", {}), **sampling})
