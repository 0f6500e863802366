"""Classes with GEM's conventions for rollenv's: those written by hand, and new ones for the others."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from rollenv.core import env as core
from rollenv.plugins.gem.core import Env, GemEnv


@functools.cache
def gem_class(cls: type[core.Env]) -> type[core.Env]:
    """Return the class with GEM's conventions: the one in :mod:`rollenv.plugins.gem`, or a new one."""
    if issubclass(cls, GemEnv) or Env in cls.__mro__:
        return cls
    where = f"{cls.__module__}:{cls.__qualname__}"
    return _by_hand().get(where) or _made(cls, where)


@functools.cache
def _by_hand() -> dict[str, type[core.Env]]:
    """Read ``CLASSES``, GEM's own class for one of rollenv's: ``{"module:Class": "GemClass"}``."""
    from rollenv.plugins.gem import data, games  # not above: they need packages that few environments do

    found: dict[str, type[core.Env]] = {}
    for module in (games, data):
        for where, gem_name in module.CLASSES.items():
            own_module, _, own_name = where.partition(":")
            own = getattr(importlib.import_module(own_module), own_name)
            found[f"{own.__module__}:{own.__qualname__}"] = getattr(module, gem_name)
    return found


def _made(cls: type[core.Env], where: str) -> type[core.Env]:
    known = inspect.signature(cls).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # GEM's constructors swallow what they do not know
        cls.__init__(self, *args, **{k: v for k, v in kwargs.items() if takes_all or k in known})

    made = type(cls.__name__, (GemEnv, cls), {"__module__": __name__, "__doc__": cls.__doc__, "__init__": __init__})
    made.__qualname__ = where.replace(".", "/")  # pickle finds it again through __getattr__ below
    made.__signature__ = inspect.signature(cls)  # type: ignore[attr-defined]
    return made


def __getattr__(name: str) -> Any:
    """Return the class with GEM's conventions for ``package/module:Class``, for pickle and entry points."""
    module, colon, qualname = name.replace("/", ".").partition(":")
    if not colon:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return gem_class(functools.reduce(getattr, qualname.split("."), importlib.import_module(module)))
