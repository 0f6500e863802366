"""Cells of Python, as a notebook runs them: what they print, the value of the last expression, how they fail."""

from __future__ import annotations

import ast
import atexit
import base64
import contextlib
import io
import json
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Mapping
from typing import Any

if __package__:
    from rollenv.sandbox.inside import report
else:
    import report  # type: ignore[import-not-found,no-redef]

Json = dict[str, Any]


class Interpreter:
    """Runs cells of Python in one namespace.

    Args:
        fd: where reports go.
    """

    def __init__(self, fd: int) -> None:
        self.fd, self.pid = fd, os.getpid()
        self.main = types.ModuleType("__main__")
        self.main.__dict__.update(__builtins__=__builtins__, display=self.display)
        sys.modules["__main__"] = self.main
        self.results: list[Json] = []

    def run(self, code: str) -> int:
        """Execute one cell and report what came of it; its exit status."""
        self.results, status = [], 0
        try:
            self._execute(code)
        except SystemExit as leave:
            status = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
            if leave.code is not None and not isinstance(leave.code, int):
                print(leave.code, file=sys.stderr)  # noqa: T201
            if status:
                self._failed("SystemExit", str(leave.code), "")
        except BaseException as caught:  # whatever the code raised is its result
            status = 1
            self._failed(*_describe(caught))
        if self.reporting:
            self._figures()
            self._report()
        flush()
        return status & 0xFF

    @property
    def reporting(self) -> bool:
        """Whether this is the process that was asked, and not a fork of it that the code did not end."""
        return os.getpid() == self.pid

    def _execute(self, code: str) -> None:
        tree = ast.parse(code, "<code>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), self.main.__dict__)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), self.main.__dict__)
            if value is not None:
                self.main.__dict__["_"] = value
                self.results.append(formats(value) | {"is_main_result": True})

    def display(self, *values: Any) -> None:
        """Show values as results."""
        self.results += [formats(value) for value in values]

    def _failed(self, name: str, value: str, trace: str) -> None:
        with contextlib.suppress(Exception):
            sys.stderr.write(trace)
        if self.reporting:
            report.write_all(self.fd, report.frame(report.ERROR, name, value.replace("\0", "\\0"), trace))

    def _report(self) -> None:
        size = 0
        for result in self.results[: report.MAX_FRAMES // 20]:
            pieces = [report.frame(report.RESULT, "main" if result.pop("is_main_result", False) else "display")]
            pieces += [report.frame(report.FIELD, name, text) for name, text in result.items()]
            size += sum(map(len, pieces))
            if size > report.MAX_BYTES * 9 // 10:
                dropped = f"[more than {report.MAX_BYTES * 9 // 10} bytes of results; the rest was dropped]"
                pieces = [pieces[0], report.frame(report.FIELD, "text", dropped)]
            report.write_all(self.fd, b"".join(pieces))
            if size > report.MAX_BYTES * 9 // 10:
                break

    def _figures(self) -> None:
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        with contextlib.suppress(Exception):
            for number in pyplot.get_fignums() if pyplot else ():
                self.results.append(formats(pyplot.figure(number)))
            if pyplot:
                pyplot.close("all")


def _describe(error: BaseException) -> tuple[str, str, str]:
    """Name, value and trace of an exception, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != "<code>":
        trace = trace.tb_next
    name: str = type.__dict__["__name__"].__get__(type(error))  # its class may say anything
    with contextlib.suppress(BaseException):
        lines = traceback.format_exception(type(error), error, trace)
        return name, str(error)[:10_000], "".join(lines)[-100_000:]
    return name, "", f"{name}\n"


_METHODS = {
    "html": "_repr_html_",
    "markdown": "_repr_markdown_",
    "svg": "_repr_svg_",
    "png": "_repr_png_",
    "jpeg": "_repr_jpeg_",
    "latex": "_repr_latex_",
    "json": "_repr_json_",
}


def formats(value: Any) -> dict[str, Any]:
    """Every representation that a value offers, as text: pictures in base64, ``json`` as a document."""
    found: dict[str, Any] = {}
    for name, method in _METHODS.items():
        if hasattr(type(value), method):
            with contextlib.suppress(Exception):
                found[name] = getattr(value, method)()
    if "png" not in found and "matplotlib" in sys.modules and hasattr(value, "savefig"):
        with contextlib.suppress(Exception):
            picture = io.BytesIO()
            value.savefig(picture, format="png", bbox_inches="tight")
            found["png"] = picture.getvalue()
    if isinstance(value, (dict, list)):
        found.setdefault("json", value)
    shown = {}
    for name, what in found.items():
        with contextlib.suppress(Exception):  # circular, or of no type that can be shown
            shown[name] = json.dumps(what) if name == "json" else _text(what)
    try:
        shown["text"] = str(repr(value))
    except Exception as error:
        shown["text"] = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return {name: text for name, text in shown.items() if text is not None}


def _text(shown: Any) -> str | None:
    if isinstance(shown, bytes):
        return base64.b64encode(shown).decode()
    return None if shown is None else str(shown)


def serve_cells(requests: int, reports: int) -> None:
    """Run cells as they come, and report on each with its number."""
    interpreter = Interpreter(reports)
    signal.signal(signal.SIGINT, _nothing)
    while line := report.read_message(requests):
        request = json.loads(line)
        try:
            with _environment(request.get("env") or {}):
                signal.signal(signal.SIGINT, signal.default_int_handler)
                interpreter.run(request["code"])
        except KeyboardInterrupt:  # between the cell's end and its report
            if interpreter.reporting:
                report.write_all(reports, report.frame(report.ERROR, "KeyboardInterrupt", "", ""))
        finally:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGINT, _nothing)
        if not interpreter.reporting:
            flush()
            os._exit(0)
        report.write_all(reports, report.frame(report.DONE, str(request["number"])))
    os._exit(0)


def run_program(code: str, reports: int) -> None:
    """Run one program to its end, as an interpreter would."""
    status = Interpreter(reports).run(code)
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    flush()
    os._exit(status)


def _nothing(*_: object) -> None:
    """An interrupt that comes while no cell runs."""


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def flush() -> None:
    """Write out what was printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
