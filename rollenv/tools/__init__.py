"""Things that an agent may call."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollenv.tools.backend import Backend, ToolError, tool
    from rollenv.tools.function import FunctionTool
    from rollenv.tools.python import PythonCodeTool

#: The module of each public name, imported on first use.
_MODULES = {
    "Backend": "rollenv.tools.backend",
    "FunctionTool": "rollenv.tools.function",
    "PythonCodeTool": "rollenv.tools.python",
    "ToolError": "rollenv.tools.backend",
    "tool": "rollenv.tools.backend",
}

__all__ = [
    "Backend",
    "FunctionTool",
    "PythonCodeTool",
    "ToolError",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
