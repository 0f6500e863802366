"""Tasks with tools whose end state can be checked: generated ones, and published data sets."""

from __future__ import annotations

import importlib
import pkgutil


def register_family() -> None:
    """Register ``tools:*``: folders with a function ``register_tools()`` add their ids, the others hold shared code."""
    folders = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
    for part in [importlib.import_module(f"{__name__}.{name}") for name in folders]:
        if hasattr(part, "register_tools"):
            part.register_tools()
