"""Things that an agent may call."""

from typing import TYPE_CHECKING

from rollenv.core.lazy import lazy_names

if TYPE_CHECKING:
    from rollenv.core.tools.backend import Backend, ToolError, tool
    from rollenv.core.tools.function import FunctionTool
    from rollenv.core.tools.python import PythonCodeTool

__all__ = ["Backend", "FunctionTool", "PythonCodeTool", "ToolError", "tool"]

__getattr__, __dir__ = lazy_names(__name__)
