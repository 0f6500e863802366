"""Parts of upper rooms by the names under which lower rooms ask for them, so that no room imports one above it.

``rollenv/__init__.py`` fills the table; what it names is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

#: ``"module:name"`` of each part.
PARTS: dict[str, str] = {}


def part(name: str) -> Any:
    """Import a part."""
    module, _, attribute = PARTS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
