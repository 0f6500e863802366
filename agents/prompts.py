"""From what an environment says to what a model reads."""

from __future__ import annotations

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

    ``template`` may use ``{instructions}`` (the observation at reset), ``{observation}`` (the last one), ``{state}``
    (``info["suffix"]``, or the observation where there is none) and ``{history}`` (the last ``history_length``
    observations and actions).
    """

    template: str = DEFAULT_TEMPLATE
    history_length: int = 0
    chat: bool = True
    """Whether to wrap the text as a user message with the tokenizer's chat template."""

    def __post_init__(self) -> None:
        used = {name for _, name, _, _ in string.Formatter().parse(self.template) if name is not None}
        if unknown := sorted(used - set(FIELDS)):
            raise UsageError(f"prompt template: unknown field {{{unknown[0]}}}; there are {', '.join(FIELDS)}")

    def render(
        self, instructions: str, turns: Sequence[tuple[str, str]], observation: str, info: dict[str, Any]
    ) -> str:
        """The text for the next turn; ``turns`` are the (observation, action) pairs so far."""
        state = info.get("suffix") or observation
        if self.template == "{state}":
            return state
        recent = turns[len(turns) - self.history_length :] if self.history_length else ()
        history = "".join(f"{seen}\nYou: {did}\n" for seen, did in recent)
        last = "" if observation == instructions else observation
        return self.template.format(instructions=instructions, history=history, observation=last, state=state)
