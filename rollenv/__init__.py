"""rollenv: where language-model agents meet environments."""

import importlib as _importlib
import sys as _sys
from types import ModuleType as _ModuleType

from rollenv.core.checker import check_env
from rollenv.core.env import Env, Wrapper
from rollenv.core.env_spec import EnvSpec
from rollenv.core.errors import EpisodeOver, MissingExtra, RollenvError, UnknownEnv, Unsolvable, UsageError
from rollenv.core.registry import ABILITIES, list_envs, make, print_envs, register, spec
from rollenv.core.spaces import TextSpace
from rollenv.core.vector import make_vec
from rollenv.moved import MovedModules as _MovedModules
from rollenv.notebook import env_html as _env_html  # noqa: F401  # notebooks show environments as HTML

_sys.meta_path.insert(0, _MovedModules())

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


def __getattr__(name: str) -> _ModuleType:
    """Return a module that moved, for ``rollenv.registry`` after a mere ``import rollenv``."""
    if name.startswith("_") or _MovedModules().find_spec(f"rollenv.{name}") is None:
        raise AttributeError(f"module 'rollenv' has no attribute {name!r}")
    return _importlib.import_module(f"rollenv.{name}")
