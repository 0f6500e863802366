"""The environment families that come with rollenv: the namespace of an id names its folder or file here."""

from __future__ import annotations

import importlib
import pkgutil


def register_all() -> None:
    """Register every id; called once, when an id is first looked up.

    A family is a folder or file of this one with a function ``register_family()``. The others hold what families share.
    """
    for module in pkgutil.iter_modules(__path__):
        family = importlib.import_module(f"{__name__}.{module.name}")
        if hasattr(family, "register_family"):
            family.register_family()
