"""A bounded prompt for each turn, from observations and actions."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rollenv.core import UsageError

FIELDS = ("instructions", "history", "observation", "state")

#: Pairs of what is asked and what is answered.
Examples = tuple[tuple[str, str], ...]

DEFAULT_TEMPLATE = "{instructions}\n\n{history}{observation}\n{state}"


@dataclass(frozen=True)
class StepPrompt:
    """A self-contained prompt of bounded length, rebuilt for every turn (GiGPO, arXiv 2505.10978, section 4).

    ``template`` may use ``{instructions}`` (the observation at reset), ``{observation}`` (the last one), ``{history}``
    (the last ``history_length`` observations and actions) and ``{state}``: the state that the observation does not show
    (``info["suffix"]``), or the observation where there is none. Alone in a template, ``{state}`` is all that a model
    reads, so that a task may say itself what that is (``info["brief"]``). No text is shown twice: the observation at
    reset appears in the first of the fields that hold it.
    """

    template: str = DEFAULT_TEMPLATE
    history_length: int = 0
    chat: bool = True
    """True to wrap the text as a user message with the tokenizer's chat template."""
    max_tokens: int = 0
    """The most tokens of a prompt, 0 for no limit. History is left out, oldest first, until it fits; a prompt that is
    too long without history ends the episode as a full context does."""
    max_observation: int = field(default=0, repr=False)
    """The most characters of an observation, 0 for all; a note stands for what is cut from the middle."""
    template_args: dict[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of the chat template, such as ``enable_thinking=False``. Not in the repr, which names warm-ups of the
    tiny model; its template takes none."""
    examples: Examples = field(default=(), repr=False)
    """Prompts and their answers, which every prompt shows first: as earlier messages of the chat, or as text."""

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
            info: ``info`` of the same reset or step.
        """
        used = _fields(self.template)
        shown = instructions if "instructions" in used else None
        recent = turns[-self.history_length :] if self.history_length else ()
        history = "".join(f"{_line_unless_shown(shown, before)}You: {did}\n" for before, did in recent)
        last = "" if observation == shown else observation
        state = str(info.get("suffix", ""))
        if not used & {"instructions", "observation"}:
            state = str(info.get("brief") or state or observation)
        elif "observation" not in used:
            state = state or last
        elif observation.endswith(state):
            state = ""
        return self.template.format(instructions=instructions, history=history, observation=last, state=state)


@dataclass(frozen=True)
class ChatPrompt:
    """The whole episode as one chat, in the tokens that were read and drawn."""

    system: str = ""
    """The system prompt, if any."""
    max_tokens: int = 0
    """The most tokens of a prompt, 0 for no limit: the episode then ends as with a full context."""
    template_args: dict[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of the chat template, such as ``enable_thinking=False``."""
    thoughts: Literal["template", "keep", "drop"] = "template"
    """Earlier thoughts in later prompts; see :class:`~rollenv.agents.prompts.conversation.Conversation`."""
    max_observation: int = 0
    """The most characters of an observation, 0 for all; a note stands for what is cut from the middle."""
    examples: Examples = field(default=(), repr=False)
    """Messages and their answers, with which every chat begins."""
    tools: Literal["text", "template"] = "text"
    """``template``: the functions that an environment offers (``info["tools"]``) go through the chat template, which
    tells of them in the model's own form. The ids ``tools:*`` then take ``calls="native"``, so that their text does
    not. Calls are read in the forms of all model families."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", tuple((prompt, answer) for prompt, answer in self.examples))


def as_chat(examples: Examples) -> list[tuple[str, str]]:
    """Return examples as the roles and texts of a chat."""
    return [turn for prompt, answer in examples for turn in (("user", prompt), ("assistant", answer))]


def as_text(examples: Examples, prompt: str) -> str:
    """Return a plain prompt with examples before it: each answer stands behind its prompt and ends its line."""
    shown = (f"{before}{'' if before[-1:].isspace() else ' '}{answer}\n" for before, answer in examples)
    return "".join((*shown, prompt))


@functools.lru_cache(maxsize=256)
def _fields(template: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in string.Formatter().parse(template) if name is not None)


def _line_unless_shown(shown: str | None, before: str) -> str:
    """A line with the observation, unless it repeats the instructions."""
    return "" if before == shown else f"{before}\n"
