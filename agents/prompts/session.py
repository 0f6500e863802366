"""An episode of a language model: converts observations to prompts, and tokens to actions."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rollenv.agents.base import Action, Agent, ContextFull, EnvHandle, Session
from rollenv.agents.engines.base import Engine, Ids, Response, Sampling, text_tokens, vision_of
from rollenv.agents.model_files import reading
from rollenv.agents.offered_tools import offered_tools
from rollenv.agents.prompts import ChatPrompt, StepPrompt
from rollenv.agents.prompts.chat_format import ChatFormat
from rollenv.agents.prompts.conversation import Conversation
from rollenv.agents.prompts.step import Examples, StepEpisode, as_text, placed
from rollenv.core.errors import UsageError
from rollenv.core.parsing import THOUGHT_MARKS, after_thoughts, cut_middle, well_formed
from rollenv.core.pictures import MARK, Picture, pictures
from rollenv.core.tools.call_readers import is_mark

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: File with the prompt format and sampling, saved with the weights for later evaluations.
AGENT_FILE = "rollenv_agent.json"


class Codec(Protocol):
    """Conversion of texts to tokens and back."""

    @property
    def sees(self) -> bool:
        """False if the model reads texts only."""
        ...

    def encode(self, text: str, images: tuple[Picture, ...] = ()) -> Ids:
        """Encode a prompt (as a user message for chat models), with pictures at its marks or before it."""
        ...

    def decode(self, ids: Ids) -> str:
        """Decode a response, without special tokens except the marks of thoughts and calls."""
        ...

    def opens_thought(self, prompt: Ids) -> bool:
        """Return whether the prompt ends inside a thought."""
        ...


@dataclass(slots=True)
class TokenSession(Session):
    """Plays one episode with any engine.

    The environment gets the model's text unchanged, without special tokens: it parses actions and decides about invalid
    ones. With ``cut_thoughts``, everything up to the end of the last thought is removed from the text, but not from the
    tokens. An unfinished thought has no action: the environment gets the text outside of it, mostly empty, and the
    action's ``finish`` is "unfinished" if the model ended it there itself.

    Args:
        play: a prompt of bounded length, rebuilt every turn, or the whole episode as a chat.
        max_prompt: maximum number of prompt tokens, 0 for no limit (see
            :class:`~rollenv.agents.prompts.StepPrompt`).
        max_observation: maximum number of characters of an observation, 0 for no limit.
    """

    engine: Engine
    play: StepEpisode | Conversation
    codec: Codec
    sampling: Sampling
    rng: random.Random
    number: int = -1
    cut_thoughts: bool = True
    max_prompt: int = 0
    max_observation: int = 0
    _prompt_text: str | None = None
    """The last prompt, if it was written for one turn."""
    _full: bool = False
    """True if the last observation was asked about, but did not fit."""

    async def act(self, observation: str, info: dict[str, Any]) -> Action:
        try:
            prompt = self.ask(observation, info)
        except ContextFull:
            self._full = True
            raise
        sampling, room = self.sampling, self.engine.max_context - len(prompt)
        if sampling.max_new_tokens > room:
            sampling = dataclasses.replace(sampling, max_new_tokens=room)
        return self.take(
            observation, prompt, await self.engine.generate(prompt, sampling, self.rng, session=self.number)
        )

    def next_prompt(self, observation: str, info: dict[str, Any]) -> Ids:
        if self._full:
            return ()
        try:
            return self.ask(observation, info)
        except ContextFull:
            return ()

    def ask(self, observation: str, info: dict[str, Any]) -> Ids:
        """Return the prompt of the next turn."""
        if info.get("images") and not self.codec.sees:
            raise UsageError(
                "the observation has pictures, and this model reads texts only: play a model that sees, with its "
                "processor's files beside it (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Gemma 3, SmolVLM), or an endpoint "
                "(chat:MODEL)"
            )
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
        """Convert a response to the prompt of :meth:`ask` to an action, and add it to the history."""
        ids = tuple(response.ids)
        decoded, finish = self.codec.decode(ids), response.finish
        if self.sampling.max_new_tokens == 1 and finish == "length":
            finish = "stop"  # one token leaves no room to say the end: answers are actions, not cut
        text = decoded
        if self.cut_thoughts:
            text, unfinished = after_thoughts(decoded, self.codec.opens_thought(prompt))
            if unfinished and finish != "length":
                finish = "unfinished"
        if isinstance(self.play, Conversation):
            self.play.answer(ids)
        else:
            self.play.add(text)
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
            prompt=self._prompt_text,
        )

    def close(self) -> None:
        if self.number >= 0:
            self.engine.release(self.number)

    def _prompt(self, observation: str, info: dict[str, Any]) -> Ids:
        images = pictures(info)
        if isinstance(self.play, Conversation):
            if self.play.wants_tools:
                self.play.offer(offered_tools(info))
            for role, text, own in chat_messages(observation, info, as_results=self.play.takes_results(info)):
                self.play.add(role, cut_middle(text, self.max_observation) if self.max_observation else text, own)
            return self.play.prompt()
        if self.max_observation:
            observation = cut_middle(observation, self.max_observation)
        prompt: Ids = ()
        for text in self.play.prompts(observation, info):
            self._prompt_text = text
            prompt = self.codec.encode(text, images)
            if not self.max_prompt or len(prompt) <= self.max_prompt:
                break
        return prompt


def chat_messages(
    observation: str, info: dict[str, Any], *, as_results: bool
) -> list[tuple[Literal["user", "tool"], str, tuple[Picture, ...]]]:
    """Return the messages of an observation in a chat: role, text and pictures.

    Args:
        as_results: give each result of a tool a message of its own, which the template puts into its wrapper. The
            observation has them in one text, in the environment's wrappers.
    """
    images, role = pictures(info), chat_role_of(info)
    results = info.get("tool_responses")
    if not (as_results and role == "tool" and results and isinstance(results, list)):
        return [(role, shown(observation, info), images)]
    texts = [str(text) for text in results]
    _, wrapper, more = observation.rpartition("</tool_response>")
    texts[-1] = shown(f"{texts[-1]}{more.rstrip()}" if wrapper else texts[-1], info)  # such as how many turns are left
    ends = list(itertools.accumulate(text.count(MARK) for text in texts))
    ends[-1] = len(images)  # what no text has a mark for is the last one's
    return [(role, text, images[begin:end]) for text, begin, end in zip(texts, [0, *ends], ends, strict=False)]


def chat_role_of(info: dict[str, Any]) -> Literal["user", "tool"]:
    """Return the role of an observation in a chat, by the ``info`` of the same reset or step."""
    return "tool" if info.get("use_tool") else "user"


def shown(observation: str, info: dict[str, Any]) -> str:
    """Return the observation with the ``prefix`` and ``suffix`` from the ``info`` of the same reset or step."""
    prefix, suffix = str(info.get("prefix", "")), str(info.get("suffix", ""))
    text = "\n".join(part.removesuffix("\n") for part in (prefix, observation) if part)
    return text if observation.endswith(suffix) else f"{text}\n{suffix}"


def refuse_pictures(info: Mapping[str, Any], who: str) -> None:
    """Refuse an observation with pictures."""
    if info.get("images"):
        raise UsageError(f"the observation has pictures, which {who} cannot see: play it with a ChatAgent (chat:MODEL)")


class ResponseText:
    """Decodes responses without special tokens, except those that mark thoughts and calls.

    Args:
        template: the template of prompts, which may open a thought, like the tokenizer's own.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str = ""):
        self.tokenizer = tokenizer
        special = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        marks = {*THOUGHT_MARKS, *THOUGHT_MARKS.values()}
        channels = {"<|start|>", "<|message|>"} <= {*special.values()}  # harmony, and Muse's
        if channels:
            marks |= {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|eom|>"}
        begin = {i: token for i, token in special.items() if token and any(m.startswith(token) for m in THOUGHT_MARKS)}
        self._kept = begin | {i: token for i, token in special.items() if token in marks or is_mark(token)}
        around = f"{template}{tokenizer.chat_template or ''}"
        self.thinks = channels or any(mark in around for mark in THOUGHT_MARKS)

    def decode(self, ids: Ids) -> str:
        """Return the text of a response."""
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
        end = str(self.tokenizer.decode(text_tokens(prompt[-12:]), clean_up_tokenization_spaces=False)).rstrip()
        return end.endswith(tuple(THOUGHT_MARKS))

    def _plain(self, ids: Ids) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class TokenizerCodec(ResponseText):
    """Encoding and decoding with a Hugging Face tokenizer.

    Args:
        chat: wrap prompts as a user message with the chat template.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, chat: bool = True, examples: Examples = (), **template_args: Any
    ):
        super().__init__(tokenizer)
        self.examples = examples
        self.format = ChatFormat.from_settings(tokenizer, template_args) if chat else None
        self.sees = vision_of(tokenizer) is not None

    def encode(self, text: str, images: tuple[Picture, ...] = ()) -> Ids:
        """Return a prompt's tokens."""
        if self.format:
            return self.format.prompt(text, self.examples, images)
        return plain_ids(well_formed(as_text(self.examples, text)), images, self.tokenizer)


def plain_ids(text: str, images: Sequence[Picture], tokenizer: PreTrainedTokenizerBase) -> Ids:
    """Return the tokens of a plain prompt with pictures, after ``<bos>`` if the tokenizer begins texts with it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend:  # several times as fast as the tokenizer's own call
        backend.no_truncation()
        backend.no_padding()

    def encode(part: str) -> Sequence[int]:
        if backend:
            return backend.encode(part, add_special_tokens=False).ids  # type: ignore[no-any-return]
        return tokenizer.encode(part, add_special_tokens=False)  # type: ignore[no-any-return]

    if images:
        family = vision_of(tokenizer)
        assert family is not None
        parts = [family.tokens(p, encode) if isinstance(p, Picture) else encode(p) for p in placed(text, images)]
        ids = tuple(i for part in parts for i in part)
    else:
        ids = tuple(encode(text))
    first = tokenizer.bos_token_id
    if first is None or ids[:1] == (first,) or list(tokenizer.encode(""))[:1] != [first]:
        return ids
    return (first, *ids)


def stop_ids(tokenizer: PreTrainedTokenizerBase, chat: bool = True) -> frozenset[int]:
    """Return the tokens that end a response.

    Args:
        chat: include the token after a turn in the chat template.
    """
    ends = {i for i in (tokenizer.eos_token_id, tokenizer.pad_token_id) if i is not None}
    if chat and tokenizer.chat_template:
        with contextlib.suppress(UsageError):  # a template that does not render answers
            ends |= ChatFormat.of(tokenizer).stop_ids
    return frozenset(ends)


class TokenAgent(Agent):
    """Plays with any engine: with a bounded prompt per turn or, without ``prompt``, with a chat over the whole episode.

    Args:
        prompt: the prompt of each turn; None for a chat.
        tools: schemas for the chat template; ``env`` for the environment's.
        template_args: arguments of the chat template, such as ``enable_thinking=False``, in addition to the prompt's.
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
        """Number of weight updates."""
        return self.engine.version

    def start(self, env: EnvHandle, seed: int) -> TokenSession:
        rng, number = random.Random(seed), next(self._numbers)
        play: StepEpisode | Conversation
        if self.prompt:
            play = StepEpisode(self.prompt)
        else:
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
    """Load the prompt format and sampling that were saved with a model."""
    file = Path(path) / AGENT_FILE
    with reading(str(path), f"the form of prompts ({AGENT_FILE})" if file.exists() else "a model"):
        saved = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        form = saved.get("prompt")
        prompt: StepPrompt | ChatPrompt | None = None
        if form is not None:
            prompt = ChatPrompt(**form) if "system" in form else StepPrompt(**form)
        drawn = saved.get("sampling", {})
    return prompt, Sampling(**{**drawn, **sampling})
