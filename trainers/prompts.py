"""Prompts from a recipe's settings."""

from __future__ import annotations

from dataclasses import replace

from rollenv.agents.prompts import ChatPrompt, StepPrompt
from rollenv.agents.prompts.examples import oracle_examples
from rollenv.core.registry import spec
from rollenv.trainers.config.run import AnyPrompt
from rollenv.trainers.config.tasks import EnvConfig


def prompt_of(
    settings: AnyPrompt, env: EnvConfig, max_tokens: int = 0, *, chats: bool = True
) -> StepPrompt | ChatPrompt:
    """Return the prompt of a run or an evaluation.

    Args:
        env: the environment, whose expert plays the examples if only their number is set.
        max_tokens: maximum length of a prompt in tokens; 0 for no limit.
        chats: whether the model has a chat template; the tiny one has none.
    """
    own = settings.model_dump(exclude={"kind", "template_args", "examples", "stop"})
    form: type[StepPrompt | ChatPrompt] = StepPrompt if settings.kind == "step" else ChatPrompt
    prompt = form(**own, max_tokens=max_tokens, template_args=settings.template_args if chats else {})
    if not isinstance(settings.examples, int):
        return replace(prompt, examples=tuple((one.user, one.assistant) for one in settings.examples))
    if not (settings.examples and env.id):
        return prompt
    wrapped = spec(env.id)
    wrapped = replace(wrapped, wrappers={**wrapped.wrappers, **env.wrappers})
    examples = oracle_examples(wrapped, env.kwargs, prompt, settings.examples, env.options)
    return replace(prompt, examples=examples)
