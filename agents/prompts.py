"""From what an environment says to what a model reads."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollenv.core import UsageError

FIELDS = ("instructions", "history", "observation", "state")

DEFAULT_TEMPLATE = "{instructions}\n\n{history}{observation}\n{state}"


@dataclass(frozen=True)
class StepPrompt:
    """A prompt of bounded length that stands on its own, made anew for every turn (GiGPO, arXiv 2505.10978, section 4).

    ``template`` may use ``{instructions}`` (the observation at reset), ``{observation}`` (the last one), ``{history}``
    (the last ``history_length`` observations and actions) and ``{state}``: the state that the observation does not show
    (``info["suffix"]``), or the observation where there is none. Alone in a template, ``{state}`` is all that a model
    reads, so that a task may say itself what that is (``info["brief"]``). No text is shown twice: the observation at
    reset stands in the first of the fields that hold it.
    """

    template: str = DEFAULT_TEMPLATE
    history_length: int = 0
    chat: bool = True
    """Whether to wrap the text as a user message with the tokenizer's chat template."""

    def __post_init__(self) -> None:
        used = _fields(self.template)
        if unknown := sorted(used - set(FIELDS)):
            raise UsageError(f"prompt template: unknown field {{{unknown[0]}}}; there are {', '.join(FIELDS)}")

    def render(
        self, instructions: str, turns: Sequence[tuple[str, str]], observation: str, info: dict[str, Any]
    ) -> str:
        """The text for the next turn; ``turns`` are the (observation, action) pairs so far."""
        used = _fields(self.template)
        told = instructions if "instructions" in used else None
        recent = turns[len(turns) - self.history_length :] if self.history_length else ()
        history = "".join(f"{_unless(told, seen)}You: {did}\n" for seen, did in recent)
        last = "" if observation == told else observation
        state = str(info.get("suffix", ""))
        if not used & {"instructions", "observation"}:
            state = str(info.get("brief") or state or observation)
        elif "observation" not in used:
            state = state or last
        elif observation.endswith(state):
            state = ""
        return self.template.format(instructions=instructions, history=history, observation=last, state=state)


@functools.lru_cache(maxsize=256)
def _fields(template: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in string.Formatter().parse(template) if name is not None)


def _unless(told: str | None, seen: str) -> str:
    """A line with what was seen, unless it was told before."""
    return "" if seen == told else f"{seen}\n"
