"""Tasks with tools, judged by their final state: generated ones and published data sets."""

from __future__ import annotations

import importlib
import pkgutil


def register_family() -> None:
    """Register ``tools:*``: call ``register_tools()`` of every package that has it."""
    folders = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
    for part in [importlib.import_module(f"{__name__}.{name}") for name in folders]:
        if hasattr(part, "register_tools"):
            part.register_tools()
