"""Any environment as an agent loop of verl's (0.9), by the name ``rollenv``.

The file that ``actor_rollout_ref.rollout.agent.agent_loop_config_path`` names has::

    - name: rollenv
      _target_: rollenv.plugins.adapters.verl.RollenvAgentLoop
      env_id: game:Sokoban-v0-tiny

A row of the dataset, or its ``extra_info``, may have ``env_id``, ``env_kwargs``, ``seed`` and ``options`` of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from rollenv.core.errors import UsageError
from rollenv.core.needs import peer
from rollenv.core.picture_forms import pil
from rollenv.core.pictures import Picture
from rollenv.plugins.adapters import EpisodeFailed, TextEpisode, fields_of, text_of, whole_of
from rollenv.plugins.adapters.observations import pil_part

with peer("verl", "0.9"):
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
    from verl.utils.profiler import simple_timer

#: Fields of a row for the environment.
_FIELDS = ("env_id", "env_kwargs", "seed", "options")


@register("rollenv")
class RollenvAgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl's package is not among those that are checked
    """Plays an episode: what the environment shows are user messages, what the model samples are replies.

    The reward is the sum of the episode's. An episode that fills the response's length, or has as many turns as it may,
    ends with what it has.

    Args:
        max_turns: replies of an episode; ``multi_turn.max_assistant_turns`` holds too.
        seconds: maximum seconds for a turn of the environment.
    """

    def __init__(
        self,
        *args: Any,
        env_id: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        max_turns: int | None = None,
        seconds: float = 600.0,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        limits = (max_turns, self.rollout_config.multi_turn.get("max_assistant_turns"))
        self.max_turns = min((each for each in limits if each), default=None)
        self.response_length, self.seconds = int(self.rollout_config.response_length), seconds
        self.given: dict[str, Any] = {"env_id": env_id, "env_kwargs": _plain(env_kwargs)}

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """Play the episode of a row.

        Args:
            priority: verl's, which names the requests of runs that can be repeated.

        Returns:
            The tokens, the mask of those that the model sampled, their log probabilities, and the reward.

        Raises:
            EpisodeFailed: the environment failed, or took too long.
        """
        extra = kwargs.get("extra_info")
        fields = {**(extra if isinstance(extra, Mapping) else {}), **kwargs}
        row = {name: _plain(fields[name]) for name in _FIELDS if fields.get(name) is not None}
        env_id = text_of(row, "env_id") or self.given["env_id"]
        if not isinstance(env_id, str):
            raise UsageError("the agent loop rollenv needs env_id: set it in its file, in the row or in extra_info")
        seed, options = whole_of(row, "seed"), fields_of(row, "options") or None
        settings = fields_of(row, "env_kwargs") or self.given["env_kwargs"] or {}
        episode = await self._within("made", TextEpisode, env_id, **settings)
        episode.sees = True
        try:
            shown = await self._within("reset", episode.start, seed, options)
            repeats = getattr(self.rollout_config, "full_determinism", False)
            request = f"det-{int(priority)}" if repeats else uuid4().hex
            messages = _with(list(kwargs["raw_prompt"]), episode.content(pil_part, shown))
            return await self._play(episode, messages, sampling_params, request)
        finally:
            with contextlib.suppress(Exception):  # the earlier error matters
                await asyncio.shield(self._within("closed", episode.close))

    async def _play(
        self, episode: TextEpisode, messages: list[Any], sampling_params: dict[str, Any], request: str
    ) -> AgentLoopOutput:
        images = list(episode.images)
        self._assert_mm_supported(bool(images))
        ids = await self.ct_build_initial_tokens(messages, images=_pil(images))
        timings, preempted = {"generate_sequences": 0.0, "tool_calls": 0.0}, -1
        mask: list[int] = []
        logprobs: list[float] | None = None
        scores: list[float] = []
        extra: dict[str, Any] = {}
        while True:
            spent: dict[str, float] = {}
            with simple_timer("generate_sequences", spent):
                output = await self.server_manager.generate(
                    request_id=request, prompt_ids=ids, sampling_params=sampling_params, image_data=_pil(images)
                )
            preempted = max(preempted, output.num_preempted if output.num_preempted is not None else -1)
            first = extra.get("min_global_steps")
            extra |= output.extra_fields or {}
            extra |= {"min_global_steps": first} if first is not None else {}
            kept = list(output.token_ids)[: self.response_length - len(mask)]
            given = list(output.log_probs)[: len(kept)] if output.log_probs else None
            if not scores:
                logprobs = None if given is None else []
            given = None if logprobs is None else given
            merged, mask, logprobs = await self.ct_merge_assistant_token(
                ids, kept, mask, logprobs, assistant_logprobs=given
            )
            ids = merged.token_ids
            reply = self.tokenizer.decode(kept, skip_special_tokens=True)
            with simple_timer("tool_calls", spent):
                shown, reward = await self._within("stepped", episode.step, reply)
            scores.append(reward)
            timings = {name: seconds + spent[name] for name, seconds in timings.items()}
            if episode.over or len(mask) >= self.response_length or len(scores) == self.max_turns:
                break
            before = [*messages, {"role": "assistant", "content": reply}]
            after = [*before, {"role": "user", "content": episode.content(pil_part, shown)}]
            self._assert_mm_supported(bool(episode.images))
            merged, longer, logs = await self.ct_merge_context_msg(before, after, ids, mask, logprobs)
            if len(longer) >= self.response_length:  # there is no room for a reply
                break
            messages, ids, mask, logprobs = after, merged.token_ids, longer, logs
            images += episode.images
        won = bool(episode.info.get("success"))
        fields: dict[str, Any] = {"turn_scores": scores, "tool_rewards": []}
        fields["reward_extra_info"] = {"score": episode.total, "success": float(won)}  # the same keys for all
        start = len(ids) - len(mask)
        return AgentLoopOutput(
            prompt_ids=ids[:start],
            response_ids=ids[start:],
            response_mask=mask,
            response_logprobs=logprobs,
            reward_score=episode.total,
            num_turns=2 * len(scores),
            multi_modal_data={"images": _pil(images)} if images else None,
            metrics={**timings, "num_preempted": preempted},
            extra_fields=extra | fields,
        )

    async def _within(self, what: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of the environment in a thread, with a deadline."""
        try:
            return await asyncio.wait_for(asyncio.to_thread(call, *args, **kwargs), self.seconds)
        except TimeoutError:
            raise EpisodeFailed(f"an environment was not {what} within {self.seconds:g} s") from None


def _pil(images: list[Picture]) -> list[Any] | None:
    """Return pictures as verl takes them; None for none."""
    return [pil(image) for image in images] or None


def _with(messages: list[Any], shown: str | list[Any]) -> list[dict[str, Any]]:
    """Append the first observation to a row's prompt, within its last message if that is the user's."""
    plain = [dict(message) for message in messages]
    if isinstance(shown, str) and plain and plain[-1]["role"] == "user" and isinstance(plain[-1]["content"], str):
        text = plain[-1]["content"].strip()
        return [*plain[:-1], {"role": "user", "content": f"{text}\n\n{shown}" if text else shown}]
    return [*plain, {"role": "user", "content": shown}]


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
