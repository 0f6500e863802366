"""Tasks with tools whose end state can be checked: generated ones, and published data sets."""

from __future__ import annotations

import importlib
import pkgutil


def register_family() -> None:
    """Register ``tools:*``: every folder here has a function ``register_tools()`` that adds its ids."""
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            importlib.import_module(f"{__name__}.{module.name}").register_tools()
