"""Players during training: the trainer's own model, or engines of their own that get the weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rollenv.agents.base import EnvHandle, Session, Updatable
from rollenv.agents.engine_agent import EngineAgent
from rollenv.agents.engines.base import Sampling
from rollenv.agents.engines.router import Router
from rollenv.agents.local import LocalAgent
from rollenv.agents.prompts import ChatPrompt
from rollenv.rollout.episode import Limits
from rollenv.trainers.config.player import MAX_LORA_RANK, AnyPlayer, VllmPlayer
from rollenv.trainers.config.run import RolloutConfig

#: The ranks that vLLM makes room for.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, MAX_LORA_RANK)


class Player(Updatable, Protocol):
    """An agent with token ids whose weights are trained."""

    sampling: Sampling

    @property
    def tokens(self) -> int:
        """That were computed or drawn."""
        ...

    def start(self, env: EnvHandle, seed: int) -> Session:
        """See :class:`~rollenv.agents.base.Agent`.

        Args:
            env: the environment of the episode.
        """
        ...


def player_of(settings: AnyPlayer, home: LocalAgent, folder: Path, rank: int = 0) -> Player:
    """The player that the settings ask for.

    Args:
        home: the model at its beginning, with its tokenizer, prompts and sampling.
        folder: where that is saved for another engine.
        rank: of the adapters that another engine is to play.

    Raises:
        MissingExtra: the engine is not installed.
        UsageError: it cannot run the model.
    """
    if not isinstance(settings, VllmPlayer):
        return home
    prompt, how = home.prompt, {}
    if isinstance(prompt, ChatPrompt):
        how = {"system": prompt.system or None, **prompt.template_args}
    bounded = None if isinstance(prompt, ChatPrompt) else prompt
    engine = engine_of(settings, home, folder, rank)
    if settings.sleep:
        engine.check_sleep()
    player = EngineAgent(engine, home.tokenizer, bounded, home.sampling, **how)
    player.version = home.version
    return player


def engine_of(settings: VllmPlayer, home: LocalAgent, folder: Path, rank: int = 0) -> Any:
    """The engine of a vLLM player.

    Args:
        home: the model at its beginning.
        rank: of the adapters that it is to play; 0 for none.

    Raises:
        MissingExtra: vLLM is not installed here, or Ray.
        UsageError: vLLM cannot run the model, or no server answers.
    """
    if settings.url:
        return servers(settings, home, folder, rank)
    chat = isinstance(home.prompt, ChatPrompt) or home.prompt.chat
    options = {"chat": chat, **({"enable_sleep_mode": True} if settings.sleep else {}), **settings.options}
    if rank:
        options |= {"enable_lora": True, "max_lora_rank": next(n for n in _RANKS if n >= rank)}
    if settings.actors:
        from rollenv.agents.engines.vllm_actors import VLLMActors

        return VLLMActors(settings.actors, folder.absolute(), options, settings.actor_options)
    from rollenv.agents.vllm import load_engine

    return load_engine(folder, **options)[0]


def servers(settings: VllmPlayer, home: LocalAgent, folder: Path, rank: int = 0) -> Any:
    """The engine over one server, or over several.

    Args:
        home: the model at its beginning.
        folder: where its weights are written for them.
        rank: of the adapters that they are to play; 0 for none.

    Raises:
        UsageError: no server answers, or one was started in another way.
    """
    from rollenv.agents.engines.vllm_server import ServerEngine

    def decode(ids: Sequence[int]) -> str:
        return str(home.tokenizer.decode(ids))

    urls = [url.strip() for url in settings.url.split(",")]
    engines = [
        ServerEngine(
            url,
            home.engine.stop,
            model=folder,
            decode=decode,
            folder=folder / f"server-{i}",
            patience=settings.patience,
        )
        for i, url in enumerate(urls)
    ]
    for engine in engines:
        engine.check_rank(rank)
    return engines[0] if len(engines) == 1 else Router(engines)


def limits_of(rollout: RolloutConfig) -> Limits:
    """Return the limits of an environment by the settings."""
    return Limits(reset=rollout.reset_deadline, step=rollout.step_deadline)


def close(player: Any) -> None:
    """End an engine that has to be ended."""
    if hasattr(player, "close"):
        player.close()
