"""rollenv: where language-model agents meet environments."""

from rollenv.checker import check_env
from rollenv.core import (
    Env,
    EpisodeOver,
    MissingExtra,
    RollenvError,
    TextSpace,
    UnknownEnv,
    Unsolvable,
    UsageError,
    Wrapper,
)
from rollenv.registry import EnvSpec, list_envs, make, register, spec

__version__ = "0.1.0"

__all__ = [
    "Env",
    "EnvSpec",
    "EpisodeOver",
    "MissingExtra",
    "RollenvError",
    "TextSpace",
    "UnknownEnv",
    "Unsolvable",
    "UsageError",
    "Wrapper",
    "check_env",
    "list_envs",
    "make",
    "register",
    "spec",
]
