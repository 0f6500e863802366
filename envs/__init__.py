"""The environment families that come with rollenv: the namespace of an id names its folder or file here."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollenv.envs.tools.base import Problem, ToolEnv

#: The module of each public name, imported on first use.
_MODULES = {"ToolEnv": "rollenv.envs.tools.base", "Problem": "rollenv.envs.tools.base"}

__all__ = ["Problem", "ToolEnv"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def register_all() -> None:
    """Register every id; called once, on the first lookup of an id.

    A family is a module or package here with a function ``register_family()``. The others are shared by families.
    """
    for module in pkgutil.iter_modules(__path__):
        family = importlib.import_module(f"{__name__}.{module.name}")
        if hasattr(family, "register_family"):
            family.register_family()
