"""The check of all that a run of the command line needs."""

from __future__ import annotations

from rollenv.agents.gguf import gguf_of, model_at
from rollenv.agents.model_files import loading
from rollenv.core import cards
from rollenv.core.errors import MissingExtra
from rollenv.core.needs import Package
from rollenv.core.registry import spec
from rollenv.trainers.config import TrainConfig


def check_run(config: TrainConfig) -> None:
    """Check all that a run of the command line needs, before anything is written or loaded.

    Raises:
        MissingExtra: packages are not installed; one error names all that environments need, or all others.
        UsageError: an environment, the model, the player or this machine is not what a key needs.
    """
    elsewhere = config.rollout.elsewhere
    for env_id in dict.fromkeys(env.id for env in config.environments() if not elsewhere):
        lacking = [need for need in spec(env_id).missing if isinstance(need, Package)]
        if lacking:
            hints = "; ".join(f"{', '.join(names)}: {hint}" for hint, names in cards.needed(lacking).items())
            raise MissingExtra(f"{env_id} needs what is not installed. {hints}")
    model, converted = config.model.path, config.model.path != "tiny" and gguf_of(config.model.path)
    if model != "tiny" and not converted:
        loading(model_at(model))
    # What is missing is said within a second: these import torch.
    from rollenv.trainers.preflight import check_player, preflight, try_environments

    preflight(config)
    if not elsewhere:
        try_environments(config)
    check_player(config)
    if converted:  # which takes a minute, so last
        loading(model_at(model))
