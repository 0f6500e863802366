"""Running code in a fork of the kernel: cells of Python, their results, and how they fail."""

from __future__ import annotations

import ast
import atexit
import base64
import contextlib
import io
import json
import os
import sys
import threading
import traceback
import types
from typing import Any

#: Bytes of results (rich output) that one execution may report.
MAX_REPORT = 16 << 20

Json = dict[str, Any]


class Interpreter:
    """Runs cells of Python in one namespace, as a notebook does."""

    def __init__(self) -> None:
        self.main = types.ModuleType("__main__")
        self.main.__dict__.update(__builtins__=__builtins__, display=self.display)
        sys.modules["__main__"] = self.main
        self.results: list[Json] = []

    def run(self, code: str) -> Json:
        """Execute one cell; what it displayed, the value of its last expression, and its error."""
        self.results, error, status = [], None, 0
        try:
            self._execute(code)
        except SystemExit as leave:
            status = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
            if leave.code is not None and not isinstance(leave.code, int):
                print(leave.code, file=sys.stderr)  # noqa: T201
            error = {"name": "SystemExit", "value": str(leave.code), "traceback": ""} if status else None
        except BaseException as caught:  # whatever the code raised is its result
            error, status = _describe(caught), 1
            sys.stderr.write(error["traceback"])
        self._figures()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        return {"results": _bounded(self.results), "error": error, "exit_code": status & 0xFF}

    def _execute(self, code: str) -> None:
        tree = ast.parse(code, "<code>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), self.main.__dict__)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), self.main.__dict__)
            if value is not None:
                self.main.__dict__["_"] = value
                self.results.append(_formats(value) | {"is_main_result": True})

    def display(self, *values: Any) -> None:
        """Show values as results."""
        self.results += [_formats(value) for value in values]

    def _figures(self) -> None:
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        for number in pyplot.get_fignums() if pyplot else ():
            with contextlib.suppress(Exception):
                self.results.append(_formats(pyplot.figure(number)))
        if pyplot:
            pyplot.close("all")


def _describe(error: BaseException) -> Json:
    """An exception without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != "<code>":
        trace = trace.tb_next
    with contextlib.suppress(Exception):
        lines = traceback.format_exception(type(error), error, trace)
        return {"name": type(error).__name__, "value": str(error)[:10_000], "traceback": "".join(lines)[-100_000:]}
    return {"name": type(error).__name__, "value": "", "traceback": f"{type(error).__name__}\n"}


_METHODS = {
    "html": "_repr_html_",
    "markdown": "_repr_markdown_",
    "svg": "_repr_svg_",
    "png": "_repr_png_",
    "jpeg": "_repr_jpeg_",
    "latex": "_repr_latex_",
    "json": "_repr_json_",
}


def _formats(value: Any) -> Json:
    """Every representation that a value offers; pictures in base64."""
    found: Json = {}
    if hasattr(value, "savefig") and "matplotlib" in sys.modules:
        picture = io.BytesIO()
        value.savefig(picture, format="png", bbox_inches="tight")
        found["png"] = base64.b64encode(picture.getvalue()).decode()
    for name, method in _METHODS.items():
        if name not in found and hasattr(type(value), method):
            with contextlib.suppress(Exception):
                shown = getattr(value, method)()
                found[name] = base64.b64encode(shown).decode() if isinstance(shown, bytes) else shown
    if isinstance(value, dict | list):
        with contextlib.suppress(Exception):
            found["json"] = json.loads(json.dumps(value))
    try:
        found["text"] = repr(value)
    except Exception as error:
        found["text"] = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return {k: v for k, v in found.items() if v is not None}


def _bounded(results: list[Json]) -> list[Json]:
    kept, size = [], 0
    for result in results:
        size += len(json.dumps(result, default=repr))
        if size > MAX_REPORT:
            kept.append({"text": f"[more than {MAX_REPORT} bytes of results; the rest was dropped]"})
            break
        kept.append(json.loads(json.dumps(result, default=repr)))
    return kept


def serve_cells(requests: int, reports: int, once: bool) -> None:
    """In the fork: run cells as they come, or one, and report on each."""
    interpreter = Interpreter()
    inbox = os.fdopen(requests, "rb")
    while line := inbox.readline():
        try:
            report = interpreter.run(json.loads(line))
        except KeyboardInterrupt:  # between the cell's end and its report
            error = {"name": "KeyboardInterrupt", "value": "", "traceback": ""}
            report = {"results": [], "error": error, "exit_code": 1}
        if once:
            _run_exit_handlers()
        write_all(reports, json.dumps(report).encode() + b"\n")
        if once:
            os._exit(report["exit_code"])
    os._exit(0)


def _run_exit_handlers() -> None:
    """What an interpreter does at its end: wait for threads, call the handlers, flush."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, in as many pieces as it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
