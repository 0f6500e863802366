"""Turns of an episode from what its environment showed and its agent did."""

from __future__ import annotations

from rollenv.agents.base import Action
from rollenv.agents.prompts.session import shown
from rollenv.rollout.types import Turn
from rollenv.rollout.workers.base import EnvResult


def turns_of(before: EnvResult, action: Action, after: EnvResult) -> list[Turn]:
    """Build the turns of an action: one, or one for each model call of a program; the last one gets the reward."""
    if not action.calls:
        return [_turn_of(before, action, after)]
    between = EnvResult("", 0.0)
    *first, last = action.calls
    return [*(_turn_of(between, call, between) for call in first), _turn_of(before, last, after)]


def _turn_of(before: EnvResult, action: Action, after: EnvResult) -> Turn:
    """Build the turn in which the agent took an action."""
    read = shown(before.observation, before.info) if action.prompt is None else action.prompt
    return Turn(
        prompt_ids=action.prompt_ids,
        response_ids=action.response_ids,
        logprobs=action.logprobs,
        reward=after.reward + action.reward,
        text=action.text,
        observation=before.observation,
        state_key=before.state_key,
        policy_version=action.policy_version,
        versions=action.versions,
        finish=action.finish,
        view=before.view,
        raw=action.raw,
        messages=action.messages,
        valid=after.info.get("valid") is not False,
        routes=action.routes,
        images=before.info.get("images", ()),
        prompt_images=action.images,
        shown="" if read == before.observation else read,
        continues=action.prompt is None,
        results=tuple(before.info.get("tool_responses", ())),
    )
