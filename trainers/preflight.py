"""The check of what a recipe's keys need, before anything begins: packages, a kind of model, devices."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from transformers import AutoConfig

from rollenv.agents.engines.local import check_layers
from rollenv.agents.engines.routing import Routing
from rollenv.agents.gguf import newest_checkpoint
from rollenv.agents.local import text_model
from rollenv.agents.model_files import NO_CODE, reading
from rollenv.core.errors import MissingExtra, UsageError
from rollenv.core.needs import Package
from rollenv.trainers.config import TrainConfig
from rollenv.trainers.config.batches import StoredConfig
from rollenv.trainers.config.own import check_functions
from rollenv.trainers.policies.routing import experts_per_token
from rollenv.trainers.stored_episodes import Unusable, check_stored
from rollenv.trainers.tracking import trackers_of


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
    path, router, replayed = (
        str(newest_checkpoint(Path(config.model.path))),
        config.loss.router,
        config.loss.routing == "replay",
    )
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
