"""A spreadsheet with a Python interpreter beside it."""

from __future__ import annotations

import functools
import json

from rollenv.envs.tools.sheet.backend import Sheet, plain
from rollenv.envs.tools.sheet.formulas import Evaluation
from rollenv.tools.backend import ToolError, tool
from rollenv.tools.python import PythonCodeTool


class SheetWithPython(Sheet):
    """A spreadsheet whose values programs can read. Programs run in a sandbox; each begins anew."""

    @tool
    def run_python(self, code: str) -> str:
        """Run a Python program and see what it prints. It finds the sheet in `cells`, as in cells["B7"].

        Args:
            code: the program; what it changes stays in it.
        """
        shown = Evaluation(self.cells).all()
        cells = {f"{column}{row}": plain(value) for column, rows in shown.items() for row, value in rows.items()}
        begin = f"cells = __import__('json').loads({json.dumps(cells)!r})"
        done = _interpreter().answer(f"{begin}\n{code}", "")
        text = done.observation.removeprefix("Code execution result: ").rstrip()
        if done.has_error:
            raise ToolError(text)
        return text or "(nothing was printed)"


@functools.cache
def _interpreter() -> PythonCodeTool:
    return PythonCodeTool(keep_error_last_line=True)
