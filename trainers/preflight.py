"""Checks before a run begins: what its keys need, its environments, its player."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import AutoConfig

from rollenv.agents.engines.local import check_layers
from rollenv.agents.engines.routing import Routing
from rollenv.agents.gguf import newest_checkpoint
from rollenv.agents.local import text_model
from rollenv.agents.model_files import NO_CODE, reading
from rollenv.core.env import Env
from rollenv.core.errors import MissingExtra, UsageError
from rollenv.core.needs import Package
from rollenv.core.proxies import without_proxy
from rollenv.core.registry import spec
from rollenv.core.wrappers.factory import TOKENIZER_REQUIRED
from rollenv.rollout.evaluate import tasks_of
from rollenv.rollout.types import Task
from rollenv.rollout.workers.base import make_env
from rollenv.trainers.chosen_recipe import naming
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.batches import StoredConfig
from rollenv.trainers.config.own import check_functions
from rollenv.trainers.config.tasks import EnvConfig
from rollenv.trainers.model_plan import blindness
from rollenv.trainers.policies.routing import experts_per_token
from rollenv.trainers.sources.configured import source_of
from rollenv.trainers.stored_episodes import Unusable, check_stored
from rollenv.trainers.tracking import trackers_of

logger = logging.getLogger(__name__)

#: Seeds to reset environments with.
_TRIED = 3


def preflight(config: TrainConfig) -> None:
    """Check each key that needs a package, a kind of model or a device.

    No weights are loaded. A model that would be downloaded is checked when it is there.

    Raises:
        MissingExtra: packages are not installed; one error names all of them.
        UsageError: the model or this machine lacks what a key needs, or a function that one names.
    """
    check_functions(config)
    placement, rollout = config.placement, config.rollout
    by_ray = placement.by_ray or placement.roles.used or rollout.shards or rollout.workers.startswith("ray")
    own_vllm = config.player.kind == "vllm" and not config.player.url
    needs = (
        ("placement and rollout.shards need", by_ray, Package("ray", "ray")),
        ("player.kind=vllm needs", own_vllm, Package("vllm", "vllm")),
        ("model.lora.rank needs", config.model.lora.rank, Package("peft", "lora")),
        ("optimizer.kind=adamw8bit needs", config.optimizer.kind == "adamw8bit", Package("bitsandbytes")),
    )
    lacking = [f"{what} {package}: {package.hint}" for what, used, package in needs if used and not package.here]
    if lacking:
        raise MissingExtra(f"a package is not installed. {'; '.join(lacking)}")
    trackers_of(config.trackers)
    if isinstance(config.batches, StoredConfig):
        chats = config.model.path != "tiny" or config.prompt.kind == "conversation"
        check_stored(config.batches.data, Unusable(config.batches.unusable), chats=chats)

    here = placement.by_ray and not (placement.address or os.environ.get("RAY_ADDRESS"))
    if here and placement.devices == "gpu" and not torch.cuda.is_available():
        raise UsageError("placement.devices=gpu: this machine has no GPU; name a cluster with placement.address")
    path, router = str(newest_checkpoint(Path(config.model.path))), config.loss.router
    replayed = config.loss.routing == "replay"
    if not Path(path, "config.json").is_file():  # the tiny model, a GGUF file or a name on the hub
        return
    model = None
    with reading(path):
        settings = AutoConfig.from_pretrained(path, local_files_only=True, **NO_CODE)
        if router or replayed:
            with torch.device("meta"):
                model = text_model("from_config", settings)
    if config.player.kind == "local":
        check_layers(settings)
    if model and ((router and not experts_per_token(model)) or (replayed and not Routing(model).routers)):
        key = "loss.router" if router else "loss.routing=replay"
        raise UsageError(f"{key} needs a mixture of experts, and {path} is none; leave it out")


def try_environments(config: TrainConfig) -> None:
    """Reset every environment of training and evaluation with several seeds, and make the source of tasks."""
    most = 1
    for one in config.environments():
        with naming(one.id), contextlib.closing(env_of(one)) as env:
            for seed in range(config.seed, config.seed + _TRIED):
                try:
                    _, info = reset_env(env, one, seed)
                    if info.get("images") and not config.harness.name and (why := blindness(config)):
                        raise UsageError(f"the observation has pictures, and {why}")
                    most = max(most, info.get("players", 1))
                    if 1 < info.get("players", 1) < (agents := 1 + len(config.seats.others)):
                        raise UsageError(f"seats.others makes {agents} agents for {info['players']} seats")
                except UsageError as error:
                    raise UsageError(f"{one.id} cannot be played with these settings: {error}") from error
    native = [one.id for one in config.environments() if one.kwargs.get("calls") == "native"]
    if native and config.templates and not config.harness.name and getattr(config.prompt, "tools", "") != "template":
        logger.warning(
            "no prompt describes the functions of %s: set prompt.kind=conversation and prompt.tools=template, or "
            "env.kwargs.calls to another form",
            native[0],
        )
    if config.seats.others and most == 1:
        raise UsageError(f"seats.others: {config.env.id} is played alone, without an opponent; leave the key out")
    source_of(config, _without_tokenizer(config.env.wrappers))
    main = config.env.id, config.eval.kwargs, config.eval.episodes
    for env_id, kwargs, episodes in (main, *((p.env.id, p.env.kwargs, p.episodes) for p in config.eval.parts)):
        if not env_id:  # a run that learns given answers only
            continue
        try:
            tasks_of(env_id, kwargs, episodes)
        except UsageError as error:
            raise UsageError(f"{error}: lower the episodes of the evaluation") from error


def env_of(env: EnvConfig) -> Env:
    """Make an environment of training or evaluation with its wrappers."""
    return make_env(spec(env.id), Task(env.id, 0, env.kwargs, _without_tokenizer(env.wrappers), env.options))


def _without_tokenizer(wrappers: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Leave out the wrappers that need a tokenizer, which may not be downloaded yet."""
    return {name: settings for name, settings in wrappers.items() if name not in TOKENIZER_REQUIRED}


def reset_env(env: Env, settings: EnvConfig, seed: int) -> tuple[Any, dict[str, Any]]:
    """Reset an environment, with its options if it has any."""
    return env.reset(seed, options=settings.options) if settings.options else env.reset(seed)


def check_player(config: TrainConfig) -> None:
    """Check that the player's servers answer.

    Raises:
        UsageError: one does not.
    """
    player = config.player
    if player.kind == "local":
        return
    for url in filter(None, player.url.split(",")):
        try:
            with httpx.Client(timeout=player.patience, mounts=without_proxy(url.strip())) as client:
                client.get(f"{url.strip().rstrip('/').removesuffix('/v1')}/health")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UsageError(
                f"no {player.kind} server answers at player.url={url.strip()}: {error}; start it first"
            ) from error
