"""rollenv: where language-model agents meet environments."""

from rollenv.checker import check_env
from rollenv.core import (
    Env,
    EpisodeOver,
    MissingExtra,
    RollenvError,
    UnknownEnv,
    Unsolvable,
    UsageError,
    Wrapper,
)
from rollenv.env_spec import EnvSpec
from rollenv.notebook import env_html as _env_html  # noqa: F401  # notebooks show environments as HTML
from rollenv.registry import ABILITIES, list_envs, make, print_envs, register, spec
from rollenv.spaces import TextSpace
from rollenv.vector import make_vec

__version__ = "0.1.0"

__all__ = [
    "ABILITIES",
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
    "make_vec",
    "print_envs",
    "register",
    "spec",
]
