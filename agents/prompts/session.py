"""An episode of a language model: from observations to prompts, and from tokens to actions."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rollenv.agents.base import Action, ContextFull, EnvHandle, Session
from rollenv.agents.engines.base import Engine, Ids, Response, Sampling
from rollenv.agents.offered_tools import offered
from rollenv.agents.pictures import refuse_pictures
from rollenv.agents.prompts import ChatPrompt, StepPrompt
from rollenv.agents.prompts.chat_format import ChatFormat
from rollenv.agents.prompts.conversation import Conversation
from rollenv.agents.prompts.step import Examples, as_text
from rollenv.core import UsageError
from rollenv.parsing import THOUGHT_MARKS, after_thoughts, cut_middle, well_formed
from rollenv.tools.call_readers import is_mark

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Saved beside the weights, so that an evaluation prompts a model the way it was trained.
AGENT_FILE = "rollenv_agent.json"


class Codec(Protocol):
    """Conversion of texts to tokens and back."""

    def encode(self, text: str) -> Ids:
        """A prompt that consists of this text (as a user's message, where the model wants a chat)."""
        ...

    def decode(self, ids: Ids) -> str:
        """The text of a response, without special tokens except the marks of thoughts and calls."""
        ...

    def opens_thought(self, prompt: Ids) -> bool:
        """True if the prompt ends inside a thought."""
        ...


@dataclass(slots=True)
class TokenSession(Session):
    """Plays one episode over any engine.

    The model's text goes to the environment as it is, without special tokens: environments parse actions and decide
    what is invalid and what that costs. With ``cut_thoughts``, all up to the end of the last thought is cut from the
    text, but not from the tokens. A thought that does not end holds no action: the environment gets what stands
    outside it, mostly an empty text, and the action's ``finish`` is "unfinished".

    Args:
        engine: draws the responses. A prompt and its response never have more tokens than it allows.
        play: a prompt of bounded length, rebuilt every turn, or the whole episode as a chat.
        rng: the private stream of the episode.
        number: the session's number with the engine, by which it keeps what it has computed from turn to turn.
        max_prompt: the most tokens of a prompt, 0 for no limit (see :class:`~rollenv.agents.prompts.StepPrompt`).
        max_observation: the most characters of an observation, 0 for no limit.
    """

    engine: Engine
    play: StepPrompt | Conversation
    codec: Codec
    sampling: Sampling
    rng: random.Random
    number: int = -1
    cut_thoughts: bool = True
    max_prompt: int = 0
    max_observation: int = 0
    _instructions: str | None = None
    _turns: list[tuple[str, str]] = field(default_factory=list)

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        prompt = self.ask(observation, info)
        sampling, room = self.sampling, self.engine.max_context - len(prompt)
        if sampling.max_new_tokens > room:
            sampling = dataclasses.replace(sampling, max_new_tokens=room)
        return self.take(
            observation, prompt, await self.engine.generate(prompt, sampling, self.rng, session=self.number)
        )

    def ask(self, observation: str, info: dict[str, Any]) -> Ids:
        """The prompt of the next turn, with room for an answer behind it.

        Raises:
            ContextFull: there is no room.
            UsageError: the observation has pictures.
        """
        refuse_pictures(info, "an agent of token ids")
        prompt = self._prompt(observation, info)
        if self.max_prompt and len(prompt) > self.max_prompt:
            raise ContextFull(
                f"the prompt has {len(prompt)} tokens, more than max_tokens={self.max_prompt} allows; "
                "raise it (rollout.max_prompt_tokens in training), or shorten the template"
            )
        if self.engine.max_context - len(prompt) < 1:
            raise ContextFull(
                f"the prompt has {len(prompt)} tokens and the model's context is {self.engine.max_context}; "
                "shorten the prompt, or play a model with a longer context"
            )
        return prompt

    def take(self, observation: str, prompt: Ids, response: Response) -> Action:
        """The action that a response to :meth:`ask`'s prompt means, which is remembered for the prompts to come."""
        ids = tuple(response.ids)
        decoded, finish = self.codec.decode(ids), response.finish
        text = decoded
        if self.cut_thoughts:
            text, unfinished = after_thoughts(decoded, self.codec.opens_thought(prompt))
            finish = "unfinished" if unfinished else finish
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
            finish,
            "" if decoded == text else decoded,
            routes=response.routes,
        )

    def fork(self) -> TokenSession:
        """A copy of the session, which continues on its own; both share the random stream."""
        if not (isinstance(self.play, Conversation) or self.play.history_length):
            return self  # it knows nothing but the instructions
        play = self.play.fork() if isinstance(self.play, Conversation) else self.play
        return dataclasses.replace(self, play=play, _turns=self._turns.copy())

    def become(self, other: TokenSession) -> None:
        """Know what another session knows; the source of draws and the number stay."""
        other = other.fork()
        self.play, self._turns, self._instructions = other.play, other._turns, other._instructions

    @property
    def at_once(self) -> bool:
        """True if an answer is one token that the engine can draw in a plain call, for many sessions together."""
        engine: Any = self.engine
        one = self.sampling.max_new_tokens == 1 and not self.sampling.routes
        return one and hasattr(engine, "answer_now") and not engine.suspended

    def close(self) -> None:
        if self.number >= 0:
            self.engine.release(self.number)

    def _prompt(self, observation: str, info: dict[str, Any]) -> Ids:
        if self.max_observation:
            observation = cut_middle(observation, self.max_observation)
        if isinstance(self.play, Conversation):
            if self.play.wants_tools:
                self.play.offer(offered(info))
            self.play.add(role_of(info), shown(observation, info))
            return self.play.prompt()
        if self._instructions is None:
            self._instructions = observation
        turns = self._turns[-self.play.history_length :]  # none are kept without a history
        while True:
            prompt = self.codec.encode(self.play.render(self._instructions, turns, observation, info))
            if not turns or not self.max_prompt or len(prompt) <= self.max_prompt:
                return prompt
            turns = turns[1:]


def role_of(info: dict[str, Any]) -> Literal["user", "tool"]:
    """Return the role of an observation in a chat, by the ``info`` of the same reset or step."""
    return "tool" if info.get("use_tool") else "user"


def shown(observation: str, info: dict[str, Any]) -> str:
    """The observation with the ``prefix`` and ``suffix`` from the ``info`` of the same reset or step around it."""
    prefix, suffix = str(info.get("prefix", "")), str(info.get("suffix", ""))
    parts = [prefix, observation, "" if observation.endswith(suffix) else suffix]
    return "\n".join(part.removesuffix("\n") for part in parts[:-1] if part) + (f"\n{parts[-1]}" if parts[-1] else "")


class ResponseText:
    """Texts of responses: special tokens are left out, except those that mark thoughts and calls.

    Args:
        template: the text around prompts, which may open a thought, beside the tokenizer's own.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str = ""):
        self.tokenizer = tokenizer
        special = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        marks = {*THOUGHT_MARKS, *THOUGHT_MARKS.values()}
        if "<|channel|>" in special.values():  # harmony, the only family whose texts need these
            marks |= {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"}
        self._kept = {i: token for i, token in special.items() if token in marks or is_mark(token)}
        around = f"{template}{tokenizer.chat_template or ''}"
        self.thinks = "<|channel|>" in special.values() or any(mark in around for mark in THOUGHT_MARKS)

    def decode(self, ids: Ids) -> str:
        """The text of a response."""
        if self._kept.keys().isdisjoint(ids):
            return self._plain(ids)
        parts, start = [], 0
        for at, token in enumerate(ids):
            if token in self._kept:
                parts += [self._plain(ids[start:at]), self._kept[token]]
                start = at + 1
        return "".join([*parts, self._plain(ids[start:])])

    def opens_thought(self, prompt: Ids) -> bool:
        """Return whether a prompt ends with the mark that opens a thought."""
        if not self.thinks:
            return False
        end = str(self.tokenizer.decode(prompt[-12:], clean_up_tokenization_spaces=False)).rstrip()
        return end.endswith(tuple(THOUGHT_MARKS))

    def _plain(self, ids: Ids) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class TokenizerCodec(ResponseText):
    """Texts through a Hugging Face tokenizer.

    Args:
        chat: wrap prompts as a user's message with the chat template.
        examples: messages that stand before every prompt.

    Raises:
        UsageError: with ``chat`` and no template.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, chat: bool = True, examples: Examples = (), **template_args: Any
    ):
        super().__init__(tokenizer)
        self.examples = examples
        self.format = ChatFormat.from_settings(tokenizer, template_args) if chat else None

    def encode(self, text: str) -> Ids:
        """A prompt's tokens."""
        if self.format:
            return self.format.prompt(text, self.examples)
        return tuple(self.tokenizer.encode(well_formed(as_text(self.examples, text)), add_special_tokens=False))


def stop_ids(tokenizer: PreTrainedTokenizerBase, chat: bool = True) -> frozenset[int]:
    """The tokens that end a response.

    Args:
        tokenizer: its end-of-sequence tokens always count.
        chat: whether the token that closes a turn in the chat template counts as well.
    """
    ends = {i for i in (tokenizer.eos_token_id, tokenizer.pad_token_id) if i is not None}
    if chat and tokenizer.chat_template:
        with contextlib.suppress(UsageError):  # a template that shows no answers closes none
            ends |= ChatFormat.of(tokenizer).stop_ids
    return frozenset(ends)


class TokenAgent:
    """Plays with any engine: by a bounded prompt a turn, or (without ``prompt``) by a chat over the whole episode.

    Args:
        prompt: how to make a prompt for each turn; None for a chat.
        tools: schemas for the chat template; ``env`` for those that the environment offers.
        cut_thoughts: leave thoughts out of actions; see :class:`TokenSession`.
        thoughts: earlier thoughts in a chat; see :class:`~rollenv.agents.prompts.conversation.Conversation`.
        max_observation: the most characters of an observation, 0 for no limit.
        examples: messages and answers with which a chat begins; a prompt has its own.
        template_args: for the chat template, such as ``enable_thinking=False``; they replace those of the prompt.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: PreTrainedTokenizerBase,
        prompt: StepPrompt | None = None,
        sampling: Sampling | None = None,
        *,
        system: str | None = None,
        tools: Sequence[dict[str, Any]] | Literal["env"] | None = None,
        cut_thoughts: bool = True,
        thoughts: Literal["template", "keep", "drop"] = "template",
        max_observation: int = 0,
        examples: Examples = (),
        **template_args: Any,
    ):
        self.engine, self.prompt, self.sampling = engine, prompt, sampling or Sampling()
        chat = prompt is not None and prompt.chat
        if prompt is not None:
            template_args = prompt.template_args | template_args
        self.codec = TokenizerCodec(tokenizer, chat, prompt.examples if prompt else (), **template_args)
        self.format = None if prompt else ChatFormat.from_settings(tokenizer, template_args)
        self.system, self.tools, self.cut_thoughts = system, tools, cut_thoughts
        self.thoughts, self.examples = thoughts, examples
        self.max_observation = prompt.max_observation if prompt else max_observation
        self._numbers = itertools.count()

    @property
    def version(self) -> int:
        """Counts the updates of the weights."""
        return self.engine.version

    def start(self, env: EnvHandle, seed: int) -> TokenSession:
        rng, number = random.Random(seed), next(self._numbers)
        play: StepPrompt | Conversation | None = self.prompt
        if play is None:
            assert self.format is not None
            context = self.engine.max_context
            play = Conversation(
                self.format, self.system, self.tools, context, thoughts=self.thoughts, examples=self.examples
            )
        return TokenSession(
            self.engine,
            play,
            self.codec,
            self.sampling,
            rng,
            number,
            self.cut_thoughts,
            max_prompt=self.prompt.max_tokens if self.prompt else 0,
            max_observation=self.max_observation,
        )


def saved_format(path: str | Path, **sampling: Any) -> tuple[StepPrompt | ChatPrompt | None, Sampling]:
    """Load the prompt format and sampling that were saved with a model.

    Args:
        path: a model's folder or hub name.
        sampling: fields of :class:`Sampling` that override the saved ones.

    Returns:
        The prompt format, or None if none was saved, and the sampling.
    """
    file = Path(path) / AGENT_FILE
    saved = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    form = saved.get("prompt")
    prompt = None if form is None else ChatPrompt(**form) if "system" in form else StepPrompt(**form)
    return prompt, Sampling(**{**saved.get("sampling", {}), **sampling})
