"""What the first prompts of every environment show: all of its text, and nothing twice."""

from __future__ import annotations

import pytest
from available import IDS

import rollenv
from rollenv.agents.prompts.session import shown
from rollenv.agents.prompts.step import DEFAULT_TEMPLATE, StepPrompt
from rollenv.core.wrappers.observation import ObservationWrapper

TEMPLATES = ("{state}", "{observation}\n{state}", "{instructions}\n{state}", DEFAULT_TEMPLATE)
_LONG = 40


def doubled(prompt: str, *texts: str) -> list[str]:
    """Long lines, and whole texts, that a prompt has more often than the text they come from."""
    pieces = {piece for text in texts for piece in (text, *text.splitlines()) if len(piece.strip()) >= _LONG}
    return [piece for piece in pieces if prompt.count(piece) > max(text.count(piece) for text in texts)]


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("env_id", IDS)
def test_no_prompt_shows_a_text_twice_or_loses_it(env_id):
    env = rollenv.make(env_id)
    try:
        observation, info = env.reset(3)
        suffix, prefix = info.get("suffix", ""), info.get("prefix", "")
        for template in TEMPLATES:
            prompt = StepPrompt(template).render(observation, [], observation, info)
            assert not doubled(prompt, observation, suffix), template
            if template != "{state}":
                assert observation in prompt
                assert suffix in prompt
        prompts = [shown(observation, info)]
        if env.players == 1:  # a history shows all, which is not for each of several players
            whole = ObservationWrapper(env, include_action=False, include_chat_template=False)
            prompts.append(whole.reset(3)[0])
        for prompt in prompts:
            assert not doubled(prompt, prefix, observation, suffix)
            assert all(part.rstrip("\n") in prompt for part in (prefix, observation, suffix))
    finally:
        env.close()
