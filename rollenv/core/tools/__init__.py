"""Things that an agent may call."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollenv.core.tools.backend import Backend, ToolError, tool
    from rollenv.core.tools.function import FunctionTool

#: The module of each public name, imported on first use.
_MODULES = {
    "Backend": "rollenv.core.tools.backend",
    "FunctionTool": "rollenv.core.tools.function",
    "PythonCodeTool": "rollenv.sandbox.python_tool",
    "ToolError": "rollenv.core.tools.backend",
    "tool": "rollenv.core.tools.backend",
}

__all__ = ["Backend", "FunctionTool", "PythonCodeTool", "ToolError", "tool"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
