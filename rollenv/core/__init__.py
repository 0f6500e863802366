"""The environment contract, and what everything else stands on."""

from rollenv.core.env import Env, ResetResult, StepResult, Wrapper
from rollenv.core.errors import (
    BadEntryPoint,
    Broken,
    EpisodeOver,
    MissingData,
    MissingExtra,
    NoSuchAbility,
    RollenvError,
    UnknownEnv,
    Unsolvable,
    UsageError,
)

__all__ = [
    "BadEntryPoint",
    "Broken",
    "Env",
    "EpisodeOver",
    "MissingData",
    "MissingExtra",
    "NoSuchAbility",
    "ResetResult",
    "RollenvError",
    "StepResult",
    "UnknownEnv",
    "Unsolvable",
    "UsageError",
    "Wrapper",
]
