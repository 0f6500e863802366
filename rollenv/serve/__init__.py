"""``rollenv serve``: environments and sandboxes for any client, with one server process and worker processes."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollenv.serve.cluster import Options, build
    from rollenv.serve.server import Settings

#: The module of each public name, which is imported when the name is first used.
_MODULES = {
    "Options": "rollenv.serve.cluster",
    "build": "rollenv.serve.cluster",
    "Settings": "rollenv.serve.server",
}

__all__ = [
    "Options",
    "Settings",
    "build",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
