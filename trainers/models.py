"""The models that a run starts from."""

from __future__ import annotations

from typing import Any

import torch

from rollenv.agents.engines.base import Sampling
from rollenv.agents.engines.local import fix_frequencies, short_context
from rollenv.agents.local import LocalAgent
from rollenv.agents.tiny.warm_up import Report, Scene, tiny_agent
from rollenv.core.env_spec import Wrappers
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.losses import Teacher
from rollenv.trainers.config.player import LocalPlayer
from rollenv.trainers.config.tasks import training_environments
from rollenv.trainers.policies.local import LocalPolicy
from rollenv.trainers.policies.lora import Lora
from rollenv.trainers.policies.sharded import ShardedPolicy
from rollenv.trainers.prompts import prompt_of
from rollenv.trainers.ranks import ALONE, Ranks
from rollenv.trainers.reward_model import RewardModel


def initial_agent(config: TrainConfig, wrappers: Wrappers, report: Report) -> LocalAgent:
    """Create the untrained player."""
    rollout, settings = config.rollout, config.prompt
    replay = config.loss.routing == "replay"
    limits = rollout.temperature, rollout.max_new_tokens, rollout.top_p, rollout.top_k
    sampling = Sampling(*limits, stop=tuple(settings.stop), routes=replay, **config.player.structure)
    environments = [*training_environments(config.env.model_copy(update={"wrappers": wrappers}), config.tasks)]
    prompt = prompt_of(settings, environments[0][0], rollout.max_prompt_tokens, chats=config.templates)
    if config.model.path == "tiny":
        return tiny_agent(
            [Scene(env.id, env.kwargs, env.wrappers, env.options, share) for env, share in environments],
            prompt,
            sampling,
            size=config.model.size,
            warm_up=config.model.warm_up,
            seed=config.seed,
            report=report,
        )
    if config.algorithm.name == "reward_model":
        player: LocalAgent = RewardModel.begin(config.model.path, config.seed)
    else:
        player = LocalAgent.load(config.model.path, plays=config.player.kind == "local")
    player.prompt, player.sampling = prompt, sampling
    return player


def reading_model(config: TrainConfig, wrappers: Wrappers, name: str) -> tuple[LocalPolicy, dict[str, int]]:
    """Load the model of a role, "reference" or "teacher"."""
    if name == "teacher" and isinstance(config.distill, Teacher):
        agent = LocalAgent.load(config.distill.path, plays=False)
    else:
        agent = initial_agent(config, wrappers, lambda *_: None)
    return initial_policy(config, agent, ALONE), agent.tokenizer.get_vocab()


def initial_policy(
    config: TrainConfig, player: LocalAgent | None, ranks: Ranks, *, share: bool = False, lora: Lora | None = None
) -> LocalPolicy:
    """Create a policy from a player's model.

    Args:
        player: None on all ranks but the first.
        share: whether the policy trains the player's own weights, not a copy.
    """
    settings = config.optimizer
    if player and not isinstance(config.player, LocalPlayer) and (short := short_context(player.model)):
        fix_frequencies(player.model, config.player.context or short)
    how: dict[str, Any] = {
        "lora": lora,
        "precision": getattr(torch, config.model.precision),
        "temperature": config.rollout.temperature,
        "betas": settings.betas,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "gradient_checkpointing": config.model.gradient_checkpointing,
        "vision": config.model.vision == "trained",
    }
    if ranks.together:
        model = player.model if player else None
        return ShardedPolicy(model, ranks, defer=config.placement.gradients == "step", **how)
    assert player is not None
    return LocalPolicy(player.model, share=share, optimizer=settings.kind, offload=settings.offload, **how)
