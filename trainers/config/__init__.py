"""The configuration of a training run, set by a recipe's TOML file and ``key=value`` on the command line."""

from rollenv.trainers.config.load import (
    as_data,
    changed_keys,
    differences,
    is_env_id,
    load_config,
    load_prompt,
    parse_config,
    recipes,
    with_data,
    with_settings,
)
from rollenv.trainers.config.run import TrainConfig

__all__ = [
    "TrainConfig",
    "as_data",
    "changed_keys",
    "differences",
    "is_env_id",
    "load_config",
    "load_prompt",
    "parse_config",
    "recipes",
    "with_data",
    "with_settings",
]
