"""Examples for prompts, played by an environment's expert."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from rollenv.agents.prompts.step import ChatPrompt, Examples, StepPrompt
from rollenv.agents.tiny.demonstrations import Lesson
from rollenv.core import UsageError
from rollenv.env_spec import EnvSpec

#: Episodes in a row without a new example after which there are too few.
_TRIES = 100


def oracle_examples(
    env_spec: EnvSpec,
    kwargs: dict[str, Any],
    prompt: StepPrompt | ChatPrompt,
    number: int,
    options: dict[str, Any] | None = None,
) -> Examples:
    """Return turns of an environment's expert, in the words in which a prompt shows such turns.

    Examples of a chat are the turns of whole episodes, one after the other. Those of a prompt for a turn are different
    turns of different episodes: the first of one, the second of the next, as far as episodes go. They are the same
    every time.

    Args:
        env_spec: spec of the environment, with the wrappers around it.
        kwargs: constructor arguments of the training environments.
        options: ``options`` of every reset.

    Raises:
        UsageError: the environment has no expert, or there are not so many different turns.
    """
    plain, steps = dataclasses.replace(prompt, examples=()), isinstance(prompt, StepPrompt)
    found: list[tuple[str, str]] = []
    with contextlib.closing(env_spec.make(**kwargs)) as env:
        if not all(hasattr(env, name) for name in ("oracle_action", "sample_random_action")):
            raise UsageError(f"{env_spec.id} has no expert to take examples from; write prompt.examples as a list")
        episode = missed = 0
        while missed < _TRIES:
            depth = len(found) if steps else number
            shown = Lesson(env_spec, kwargs, plain, 0.0, episode, 1, depth + 1, options or {}).play(env, 0)
            turns = [(turn.prompt_text, turn.expert) for turn in shown]
            if steps and turns:
                turns = [turn for turn in [turns[depth % len(turns)]] if turn[0] not in dict(found)]
            found += turns
            if len(found) >= number:
                return tuple(found[:number])
            episode, missed = episode + 1, 0 if turns else missed + 1
    raise UsageError(
        f"the expert of {env_spec.id} plays only {len(found)} different turns with this prompt; set prompt.examples to "
        "so many, or write them as a list"
    )
