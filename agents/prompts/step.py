"""A bounded prompt for each turn, from observations and actions."""

from __future__ import annotations

import functools
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rollenv.agents.base import AgentFailed
from rollenv.core.errors import UsageError
from rollenv.core.picture_forms import bound, parts
from rollenv.core.pictures import MARK, Picture

FIELDS = ("instructions", "history", "observation", "state")

#: Pairs of prompt and answer.
Examples = tuple[tuple[str, str], ...]

DEFAULT_TEMPLATE = "{instructions}\n\n{history}{observation}\n{state}"


@dataclass(frozen=True)
class StepPrompt:
    """A self-contained prompt of bounded length, rebuilt for every turn (GiGPO, arXiv 2505.10978, section 4).

    ``template`` may use ``{instructions}`` (the observation at reset), ``{observation}`` (the last one), ``{history}``
    (the last ``history_length`` observations and actions) and ``{state}``: the state that the observation lacks
    (``info["suffix"]``), or else the observation. If a template has ``{state}`` alone, a task may provide a special
    text for it (``info["brief"]``). No text is repeated: the observation at reset appears in the first field that has
    it.
    """

    template: str = DEFAULT_TEMPLATE
    history_length: int = 0
    chat: bool = True
    """True to wrap the text as a user message with the tokenizer's chat template."""
    max_tokens: int = 0
    """Maximum number of prompt tokens, 0 for no limit. History is left out, oldest first, until it fits; a prompt that
    is too long without history ends the episode like a full context."""
    max_observation: int = field(default=0, repr=False)
    """Maximum number of characters of an observation, 0 for all; the middle is replaced by a note."""
    template_args: dict[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of the chat template, such as ``enable_thinking=False``. Not in the repr, which is part of the cache
    key of the tiny model's warm-up; its template has none."""
    examples: Examples = field(default=(), repr=False)
    """Few-shot examples before every prompt: as earlier messages of the chat, or as text."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", tuple((prompt, answer) for prompt, answer in self.examples))
        try:
            unknown = sorted(_fields(self.template) - set(FIELDS))
            if not unknown:
                self.template.format(**dict.fromkeys(FIELDS, ""))
        except ValueError as error:
            raise UsageError(
                f"prompt template: {error}; a brace that is no field is written twice: {{{{ }}}}"
            ) from error
        if unknown:
            raise UsageError(f"prompt template: unknown field {{{unknown[0]}}}; choose from {', '.join(FIELDS)}")
        if self.template_args and not self.chat:
            raise UsageError("template_args are for the chat template, which chat=False leaves out")

    def render(
        self, instructions: str, turns: Sequence[tuple[str, str]], observation: str, info: dict[str, Any]
    ) -> str:
        """Render the prompt of the next turn.

        Args:
            turns: (observation, action) pairs so far.
        """
        used = _fields(self.template)
        shown = instructions if "instructions" in used else None
        recent = turns[-self.history_length :] if self.history_length else ()
        if info.get("images"):  # every mark is of one of them
            recent = [(_worded(before, info), _worded(did, info)) for before, did in recent]
        history = "".join(("" if before == shown else f"{before}\n") + f"You: {did}\n" for before, did in recent)
        last = "" if observation == shown else observation
        state = str(info.get("suffix", ""))
        if not used & {"instructions", "observation"}:
            state = str(info.get("brief") or state or observation)
        elif "observation" not in used:
            state = state or last
        elif observation.endswith(state):
            state = ""
        return self.template.format(instructions=instructions, history=history, observation=last, state=state)


@dataclass(slots=True)
class StepEpisode:
    """An episode as prompts that are rebuilt for every turn. A picture is only in the prompts of its own turn."""

    form: StepPrompt
    _turns: list[tuple[str, str]] = field(default_factory=list)
    _first: str | None = None
    """The observation at reset: the instructions of the first turn."""
    _later_instructions: str = ""
    _last: str = ""
    """The last observation as the history shows it."""

    def prompts(self, observation: str, info: dict[str, Any]) -> Iterator[str]:
        """Yield the prompt of the next turn, then shorter ones: each leaves out one more of the oldest turns."""
        self._last = _worded(observation, info)
        if self._first is None:
            self._first, self._later_instructions = observation, self._last
        instructions = observation if observation == self._first else self._later_instructions
        turns = self._turns[-self.form.history_length :]  # empty without a history
        for begin in range(len(turns) + 1):
            yield self.form.render(instructions, turns[begin:], observation, info)

    def add(self, action: str) -> None:
        """Add the answer to the last prompt to the history, if there is one."""
        if self.form.history_length:
            self._turns.append((self._last, action))


@dataclass(frozen=True)
class ChatPrompt:
    """The whole episode as one chat, with unchanged tokens."""

    system: str = ""
    """The system prompt, if any."""
    max_tokens: int = 0
    """Maximum number of prompt tokens, 0 for no limit; a longer prompt ends the episode like a full context."""
    template_args: dict[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of the chat template, such as ``enable_thinking=False``."""
    thoughts: Literal["template", "keep", "drop"] = "template"
    """Earlier thoughts in later prompts; see :class:`~rollenv.agents.prompts.conversation.Conversation`."""
    max_observation: int = 0
    """Maximum number of characters of an observation, 0 for all; the middle is replaced by a note."""
    examples: Examples = field(default=(), repr=False)
    """Few-shot examples at the beginning of every chat."""
    tools: Literal["text", "template"] = "text"
    """``template``: the environment's functions (``info["tools"]``) are given to the chat template, which describes
    them in the model's own form. The ids ``tools:*`` then need ``calls="native"``, so that their text does not. Calls
    of all model families are recognised."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", tuple((prompt, answer) for prompt, answer in self.examples))


def _worded(text: str, info: Mapping[str, Any]) -> str:
    """Return a text for the history, with a word for each mark if the turn had pictures."""
    return text.replace(MARK, "[image]") if info.get("images") else text


def placed(text: str, images: Sequence[Picture]) -> list[str | Picture]:
    """Return a text's parts with pictures at their marks, or before it if it has no mark.

    Raises:
        AgentFailed: it has another number of marks.
    """
    try:
        return [part for part in parts(bound(text, images), images) if part]
    except UsageError as error:
        raise AgentFailed(str(error)) from error


def unasked(examples: Examples, asked: str, *, chat: bool = False) -> Examples:
    """Return the examples without the prompt that is asked, which would show its answer.

    Args:
        chat: examples are turns of whole episodes, so those behind the prompt are left out too.
    """
    prompts = [prompt for prompt, _ in examples]
    if asked not in prompts:
        return examples
    if chat:
        return examples[: prompts.index(asked)]
    return tuple(pair for pair in examples if pair[0] != asked)


def as_chat(examples: Examples) -> list[tuple[str, str]]:
    """Return examples as the roles and texts of a chat."""
    return [turn for prompt, answer in examples for turn in (("user", prompt), ("assistant", answer))]


def as_text(examples: Examples, prompt: str) -> str:
    """Return a plain prompt with other examples before it: each answer follows its prompt on the same line."""
    others = unasked(examples, prompt)
    shown = (f"{before}{'' if before[-1:].isspace() else ' '}{answer}\n" for before, answer in others)
    return "".join((*shown, prompt))


@functools.lru_cache(maxsize=256)
def _fields(template: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in string.Formatter().parse(template) if name is not None)
