"""Examples for prompts, played by an environment's expert."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from rollenv.agents.prompts.step import ChatPrompt, Examples, StepPrompt
from rollenv.agents.tiny.demonstrations import Lesson
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import UsageError

#: Maximum number of consecutive episodes without a new example.
_TRIES = 100
#: Maximum number of calls in a row with which examples of a chat may end.
_MOST_CALLS = 20


def oracle_examples(
    env_spec: EnvSpec,
    kwargs: dict[str, Any],
    prompt: StepPrompt | ChatPrompt,
    number: int,
    options: dict[str, Any] | None = None,
) -> Examples:
    """Return turns of an environment's expert in the form of a prompt, deterministically.

    Examples of a chat are the turns of whole episodes; a call is never the last, since its result would be missing.
    Those of a step prompt are distinct turns of different episodes: the first turn of one, the second of the next, and
    so on.
    """
    plain, steps = dataclasses.replace(prompt, examples=()), isinstance(prompt, StepPrompt)
    examples: list[tuple[str, str]] = []
    called: list[bool] = []  # whether a turn of a chat ended with a call, whose result the next one shows
    with contextlib.closing(env_spec.make(**kwargs)) as env:
        if not all(hasattr(env, name) for name in ("oracle_action", "sample_random_action")):
            raise UsageError(f"{env_spec.id} has no expert to take examples from; write prompt.examples as a list")
        episode = missed = 0
        while missed < _TRIES:
            depth = len(examples) if steps else number + _MOST_CALLS
            played = Lesson(env_spec, kwargs, plain, 0.0, episode, 1, depth + 1, options or {}).play(env, 0)
            turns = [(turn.prompt_text, turn.expert) for turn in played]
            if steps and turns:
                turns = [turn for turn in [turns[depth % len(turns)]] if turn[0] not in dict(examples)]
            examples += turns
            results = [not steps and isinstance(t.prompt, tuple) and t.prompt[-1][0] == "tool" for t in played[1:]]
            called += [*results, False][: len(played)]
            ends = [at for at in range(number, len(examples) + 1) if steps or not called[at - 1]]
            if ends:
                return tuple(examples[: ends[0]])
            episode, missed = episode + 1, 0 if turns else missed + 1
    raise UsageError(
        f"the expert of {env_spec.id} plays only {len(examples)} different turns with this prompt; set prompt.examples "
        "to that number, or write them as a list"
    )
