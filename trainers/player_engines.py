"""The players of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rollenv.agents.base import Agent, Updatable
from rollenv.agents.engine_agent import EngineAgent
from rollenv.agents.engines.base import Sampling, vision_of
from rollenv.agents.engines.local import short_context
from rollenv.agents.engines.router import Router
from rollenv.agents.engines.vllm import VLLMEngine
from rollenv.agents.local import LocalAgent, NoEngine
from rollenv.agents.prompts import ChatPrompt
from rollenv.core.errors import UsageError
from rollenv.rollout.episode import EpisodeLimits
from rollenv.trainers.config.player import (
    MAX_LORA_RANK,
    AnyPlayer,
    HarnessConfig,
    LocalPlayer,
    ServerPlayer,
    VllmPlayer,
)
from rollenv.trainers.config.run import RolloutConfig
from rollenv.trainers.policies.routing import experts_per_token

#: The values of vLLM's ``max_lora_rank``.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, MAX_LORA_RANK)


class TrainedPlayer(Updatable, Agent, Protocol):
    """An agent with token ids whose weights are trained."""

    sampling: Sampling

    @property
    def tokens(self) -> int:
        """Number of computed or sampled tokens so far."""
        ...


def make_player(
    settings: AnyPlayer | ServerPlayer, base_agent: LocalAgent, folder: Path, rank: int = 0
) -> TrainedPlayer:
    """Create the player of the settings."""
    if isinstance(settings, LocalPlayer):
        if not isinstance(base_agent.engine, NoEngine):  # a model that is trained alone
            base_agent.engine.set_precision(settings.precision)
        return base_agent
    prompt = base_agent.prompt
    if isinstance(prompt, ChatPrompt):
        step_prompt, chat, template = None, True, {"system": prompt.system or None, **prompt.template_args}
        template |= {"thoughts": prompt.thoughts, "max_observation": prompt.max_observation}
        template["examples"] = prompt.examples
    else:
        step_prompt, chat, template = prompt, prompt.chat, {}
    engine: Any
    if isinstance(settings, ServerPlayer) or settings.url:
        engine = _server_engine(settings, base_agent, folder, rank)
    else:
        engine = _own_vllm(settings, folder, rank, {"chat": chat})
    if isinstance(settings, VllmPlayer) and settings.sleep:
        engine.check_sleep()
    first = engine.engines[0] if isinstance(engine, Router) else engine
    if first.on_cpu and not rank and experts_per_token(base_agent.model):
        raise UsageError(
            "vLLM on CPUs goes on with the experts that it started with, whatever weights it gets: take "
            "player.kind=local, a GPU, or adapters of attention layers (model.lora.targets)"
        )
    short = short_context(base_agent.model)
    if short and (engine.max_context > short) != ((settings.context or short) > short):
        raise UsageError(
            f"{settings.kind} plays with a context of {engine.max_context} tokens, and takes rotary frequencies for "
            f"more than {short} of them, with which the model is not trained: limit its context to {short}"
        )
    player = EngineAgent(engine, base_agent.tokenizer, step_prompt, base_agent.sampling, **template)
    player.version = base_agent.version
    return player


def with_harness(settings: HarnessConfig, player: TrainedPlayer) -> TrainedPlayer:
    """Return the player, or a harness that plays with its model."""
    if not settings.name:
        return player
    from rollenv.agents.gateway.session import Caps
    from rollenv.agents.harness.agent import TrainedHarnessAgent

    return TrainedHarnessAgent(
        player,
        settings.name,
        args=settings.args,
        seconds=settings.seconds,
        max_turns=settings.max_turns,
        caps=Caps(calls=settings.calls),
        kinds=settings.train,
    )


def concurrent_harnesses(settings: HarnessConfig) -> int | None:
    """Return the maximum number of concurrent episodes; None for no limit."""
    if not settings.name:
        return None
    from rollenv.agents.harness.agent import concurrent_plays

    return concurrent_plays()


def _own_vllm(settings: VllmPlayer, folder: Path, rank: int, options: dict[str, Any]) -> Any:
    """Create a vLLM engine in this process."""
    options |= settings.options
    if settings.sleep:
        options = {"enable_sleep_mode": True} | options
    if rank:
        options |= {"enable_lora": True, "max_lora_rank": next(n for n in _RANKS if n >= rank)}
    from rollenv.agents.vllm import load_engine

    return load_engine(folder, **options)[0]


def _server_engine(settings: VllmPlayer | ServerPlayer, base_agent: LocalAgent, folder: Path, rank: int) -> Any:
    """Create the engine of one server, or a router over several."""
    from rollenv.agents.engines.vllm_http import HttpTransport

    def decode(ids: Sequence[int]) -> str:
        return str(base_agent.tokenizer.decode(ids))

    transport_class = settings.transport() if isinstance(settings, ServerPlayer) else HttpTransport
    engines = []
    for i, url in enumerate(settings.url.split(",")):
        shared = folder / f"server-{i}"
        how: dict[str, Any] = {"model": folder, "folder": shared, "patience": settings.patience}
        transport = transport_class(url.strip(), **how)
        stop, family = base_agent.engine.stop, vision_of(base_agent.tokenizer)
        engine = VLLMEngine(transport, stop, model=folder, decode=decode, family=family)
        engine.check_rank(rank)
        engines.append(engine)
    return engines[0] if len(engines) == 1 else Router(engines)


def limits_of(rollout: RolloutConfig) -> EpisodeLimits:
    """Return the limits of episodes by the settings."""
    return EpisodeLimits(
        reset=rollout.reset_deadline, step=rollout.step_deadline, tokens=rollout.episode_tokens or None
    )


def close(player: Any) -> None:
    """Close the player's engine, if it has ``close()``."""
    if hasattr(player, "close"):
        player.close()
