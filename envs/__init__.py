"""The environment families that come with rollenv: the namespace of an id names its folder or file here."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from rollenv.core.lazy import lazy_names

if TYPE_CHECKING:
    from rollenv.envs.tools.base import Informant, Problem, ToolEnv, User, UserReply

__all__ = ["Informant", "Problem", "ToolEnv", "User", "UserReply"]

__getattr__, __dir__ = lazy_names(__name__)


def register_all() -> None:
    """Register every id; called once, on the first lookup of an id.

    A family is a module or package here with a function ``register_family()``. The others are shared by families.
    """
    for module in pkgutil.iter_modules(__path__):
        family = importlib.import_module(f"{__name__}.{module.name}")
        if hasattr(family, "register_family"):
            family.register_family()
