"""Public names of a package whose modules are imported when a name is first used."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package, for the names that it imports below ``if TYPE_CHECKING``."""
    source = sys.modules[package].__loader__.get_source(package)  # type: ignore[union-attr]
    blocks = [block for block in ast.parse(source).body if isinstance(block, ast.If)]
    imports = [each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom)]
    places = {alias.name: str(each.module) for each in imports for alias in each.names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(places[name]), name)

    return get, lambda: sorted({*vars(sys.modules[package]), *places})
