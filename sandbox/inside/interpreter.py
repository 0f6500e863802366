"""Execution of Python cells as in a notebook: output, the value of the last expression, and errors."""

from __future__ import annotations
import __future__

import ast
import atexit
import base64
import builtins
import contextlib
import importlib.machinery
import io
import json
import linecache
import os
import re
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from rollenv.sandbox.inside import charts, magics, protocol
from rollenv.sandbox.inside.protocol import FrameKind, RunCell, frame, from_json
from rollenv.sandbox.inside.sessions import LanguageSession

Json = dict[str, Any]

#: Flags of compiled code: ``from __future__`` imports, and top-level await.
_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag & ~0xFFFF
_COROUTINE = 0x80
#: Maximum bytes and frames of the results of one cell.
_MAX_BYTES, _MAX_FRAMES = protocol.MAX_BYTES * 9 // 10, protocol.MAX_FRAMES - 10
_SHORT = {mime: name for name, mime in protocol.MIME.items()}
#: Maximum rows of a table whose data is reported.
_MAX_ROWS = 10_000


class Interpreter:
    """Runs cells of Python in one namespace.

    Args:
        notebook: whether commands, magics and top-level ``await`` are allowed.
    """

    def __init__(self, fd: int, notebook: bool = False) -> None:
        self.fd, self.pid, self.notebook = fd, os.getpid(), notebook
        self.main = types.ModuleType("__main__")
        self.main.__dict__.update(__builtins__=__builtins__, display=self.display)
        vars(builtins).update(exit=sys.exit, quit=sys.exit)  # usually defined by the site module
        if notebook:
            shell = magics.Magics(self.main.__dict__, self._cell, self._show)
            self.main.__dict__["get_ipython"] = lambda: shell
            magics.OfferIPython(self.display)
        sys.modules["__main__"] = self.main
        self._futures = 0  # a ``from __future__ import`` also applies to later cells
        self._loop: Any = None
        self._size = self._frames = self._cells = self._parts = 0
        self._writing, self._running = threading.Lock(), False
        ShowFigures(self._figures)

    def run(self, code: str) -> int:
        """Run one cell and report the result; return its exit status."""
        self._size, self._frames, status = 0, 0, 0
        self._cells, self._parts = self._cells + 1, 0
        self._running = True
        try:
            self._cell(code)
        except SystemExit as leave:
            status, message = _exit_of(leave.code)
            if status:
                self._failed("SystemExit", message, "")
        except BaseException as caught:  # an exception of the code is its result
            status = 1
            self._failed(*_describe(caught))
        if self.reporting:
            self._figures()
            self._rest()
        flush()
        return status & 0xFF

    def interrupted(self) -> None:
        """Report an interrupt between the cell's end and its report."""
        self._rest()
        protocol.write_all(self.fd, frame(FrameKind.ERROR, "KeyboardInterrupt", "", ""))

    def _rest(self) -> None:
        with self._writing:
            self._running = False

    @property
    def reporting(self) -> bool:
        """True in the process that runs cells, false in a fork of it that code did not end."""
        return os.getpid() == self.pid

    def _cell(self, code: str, name: str = "") -> None:
        if self.notebook:
            code = magics.changed(code)
            name = name or f"<cell {self._cells}" + f".{self._parts}" * (self._parts > 0) + ">"
            self._parts += 1
        name = name or "<code>"
        # Tracebacks and inspect.getsource find the lines here. Without a time, they are not looked for in a file.
        lines = io.StringIO(f"{code}\n", newline=None).readlines()
        linecache.cache[name] = (len(code), None, lines, name)
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        parts = [self._compiled(tree, "exec", name)]
        if isinstance(last, ast.Expr):
            parts.append(self._compiled(ast.Expression(last.value), "eval", name))
        if any(part.co_flags & _COROUTINE for part in parts):
            value = self._wait_for(self._awaited(parts))
        else:
            for part in parts:
                value = eval(part, self.main.__dict__)
        if last is not None and value is not None and not (self.notebook and _ends_quietly(last, lines)):
            self.main.__dict__["_"] = value
            self._report(formats(value), main=True)

    def _compiled(self, tree: ast.Module | ast.Expression, mode: str, name: str) -> types.CodeType:
        flags = self._futures | (ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if self.notebook else 0)
        code: types.CodeType = compile(tree, name, mode, flags, dont_inherit=True)
        self._futures |= code.co_flags & _FUTURES
        return code

    async def _awaited(self, parts: list[types.CodeType]) -> Any:
        """Run a whole cell inside the event loop, even if only a part awaits."""
        for part in parts:
            value = eval(part, self.main.__dict__)
            if part.co_flags & _COROUTINE:
                value = await value
        return value

    def _wait_for(self, coroutine: Any) -> Any:
        """Run a cell that awaits. All cells share one loop; remaining tasks continue when a later cell awaits."""
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():  # an interrupt ends the loop, not the task
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    self._loop.run_until_complete(task)
            raise

    def display(self, *values: Any, raw: bool = False, **_: Any) -> None:
        """Show values as results. With ``raw`` they are mappings of MIME types to contents."""
        for value in values:
            if raw:
                self._show({_SHORT.get(str(name), str(name)): what for name, what in value.items()})
            else:
                self._report(formats(value))

    def _show(self, found: Json) -> None:
        self._report(bundle_of(found))

    def _failed(self, name: str, value: str, trace: str) -> None:
        with contextlib.suppress(Exception):
            sys.stderr.write(trace)
        flush()
        if self.reporting:
            self._write(frame(FrameKind.ERROR, name, value.replace("\0", "\\0"), trace))

    def _report(self, shown: dict[str, str], main: bool = False) -> None:
        """Report a displayed value after all earlier output."""
        flush()
        if not self.reporting or self._size > _MAX_BYTES:
            return
        pieces = [frame(FrameKind.RESULT_BEGIN, "main" if main else "display")]
        pieces += [frame(FrameKind.FIELD, name, text) for name, text in shown.items() if protocol.is_name(name)]
        self._size += sum(map(len, pieces))
        self._frames += len(pieces) + 1
        if self._size > _MAX_BYTES or self._frames > _MAX_FRAMES:
            self._size = _MAX_BYTES + 1
            dropped = f"[more than {_MAX_BYTES} bytes or {_MAX_FRAMES} parts of results; the rest was dropped]"
            pieces = [pieces[0], frame(FrameKind.FIELD, "text", dropped)]
        self._write(b"".join(pieces) + frame(FrameKind.RESULT_END))

    def _write(self, data: bytes) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a partial frame would break the report
        try:
            with self._writing:  # threads may display values, but not after the cell's end
                if self._running:
                    protocol.write_all(self.fd, data)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _figures(self) -> None:
        pyplot: Any = sys.modules.get("matplotlib.pyplot")
        with contextlib.suppress(Exception):
            for number in pyplot.get_fignums() if pyplot else ():
                self._report(formats(pyplot.figure(number)))
            if pyplot:
                pyplot.close("all")


def _ends_quietly(last: ast.stmt, lines: list[str]) -> bool:
    """Return whether a semicolon follows the last statement of a cell, which hides its value."""
    assert last.end_lineno is not None
    after = lines[last.end_lineno - 1].encode()[last.end_col_offset :].decode() + "".join(lines[last.end_lineno :])
    return re.sub("#.*", "", after).rstrip().endswith(";")


#: Files whose frames are left out of tracebacks.
_OWN = {Interpreter.run.__code__.co_filename, magics.changed.__code__.co_filename}


def _exit_of(code: object) -> tuple[int, str]:
    """Return the status and the message of a SystemExit; like Python, print a code that is not a number."""
    if code is None:
        return 0, ""
    if isinstance(code, int):
        return (code if -(1 << 63) <= code < 1 << 63 else 255), str(code)[:1000] if abs(code) < 1 << 64 else "a number"
    message = "SystemExit"
    with contextlib.suppress(BaseException):
        message = str(code)[:10_000]
    with contextlib.suppress(BaseException):
        print(message, file=sys.stderr)  # noqa: T201
    return 1, message


def _describe(error: BaseException) -> tuple[str, str, str]:
    """Return the name, value and traceback of an exception, without this module's frames."""
    name: str = type.__dict__["__name__"].__get__(type(error))  # the class may override it
    with contextlib.suppress(BaseException):
        trace = traceback.TracebackException.from_exception(error)
        inner: traceback.TracebackException | None = trace
        while inner is not None:
            inner.stack = traceback.StackSummary.from_list([f for f in inner.stack if f.filename not in _OWN])
            inner = inner.__cause__ or inner.__context__
        value = str(error)[: protocol.MAX_ERROR_TEXT].encode("utf-8", "backslashreplace")[: protocol.MAX_ERROR_TEXT]
        return name, value.decode("utf-8", "ignore"), "".join(trace.format())[-100_000:]
    return name, "", f"{name}\n"


def runner(language: str | None, reports: int) -> Interpreter | LanguageSession:
    """Return an object that runs cells of a language."""
    if language in (None, "python"):
        return Interpreter(reports, notebook=True)
    return LanguageSession(reports, language)


def serve_cells(interpreter: Interpreter | LanguageSession, requests: int, reports: int) -> NoReturn:
    """Run cells one after another, and report the end of each with its number."""
    signal.signal(signal.SIGINT, _nothing)
    while line := protocol.read_message(requests):
        cell: RunCell = from_json(json.loads(line))
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if isinstance(interpreter, LanguageSession):
                interpreter.run(cell.code, cell.env)
            else:
                with _environment(cell.env):
                    interpreter.run(cell.code)
        except KeyboardInterrupt:  # between the cell's end and its report
            if interpreter.reporting:
                interpreter.interrupted()
        finally:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGINT, _nothing)
        if not interpreter.reporting:
            flush()
            os._exit(0)
        protocol.write_all(reports, frame(FrameKind.DONE, str(cell.number)))
    os._exit(0)


def run_program(code: str, reports: int) -> NoReturn:
    """Run one program to its end, like an interpreter."""
    interpreter = Interpreter(reports)
    status = interpreter.run(code)
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):  # files that the program left open are written when they go
        variables = vars(interpreter.main)
        variables.update(dict.fromkeys(variables.keys() - {"__builtins__"}))
    with contextlib.suppress(BaseException):
        flush()
    os._exit(status)


def _nothing(*_: object) -> None:
    """Ignore an interrupt while no cell is running."""


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
    """Flush standard output and standard error."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]


# -- representations of values ---------------------------------------------------------------------------------------


def formats(value: Any) -> dict[str, str]:
    """Return all representations of a value as text: binary ones in base64, documents as JSON."""
    found: dict[str, Any] = {}
    for name in protocol.MIME:
        method = f"_repr_{name}_"
        if name != "text" and hasattr(type(value), method):
            with contextlib.suppress(Exception):
                found[name] = _without_metadata(getattr(value, method)())
    if hasattr(type(value), "_repr_mimebundle_"):
        with contextlib.suppress(Exception):
            bundle = _without_metadata(value._repr_mimebundle_())
            found.update((_SHORT.get(str(name), str(name)), what) for name, what in bundle.items())
    if "matplotlib" in sys.modules and hasattr(value, "savefig") and hasattr(value, "axes"):
        if "png" not in found:
            with contextlib.suppress(Exception):
                picture = io.BytesIO()
                value.savefig(picture, format="png", bbox_inches="tight")
                found["png"] = picture.getvalue()
        with contextlib.suppress(Exception):
            found["chart"] = charts.of_figure(value)
    if "pandas" in sys.modules and hasattr(value, "columns") and hasattr(value, "to_json"):
        with contextlib.suppress(Exception):
            if len(value) <= _MAX_ROWS:
                columns = {str(name): value.iloc[:, i] for i, name in enumerate(value.columns)}
                found["data"] = {
                    name: json.loads(c.to_json(orient="values", date_format="iso")) for name, c in columns.items()
                }
    if isinstance(value, (dict, list)):
        found.setdefault("json", value)
    shown = bundle_of(found)
    if "text" not in shown:
        try:
            shown["text"] = str(repr(value))
        except Exception as error:
            shown["text"] = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return shown


def bundle_of(found: dict[str, Any]) -> dict[str, str]:
    """Convert representations to text; those that cannot be converted are left out."""
    shown: dict[str, str] = {}
    for name, what in found.items():
        with contextlib.suppress(Exception):  # such as a circular value
            text = _text(name, what)
            if text is not None:
                shown[str(name)] = text
    return shown


def _without_metadata(shown: Any) -> Any:
    """Remove the metadata from a pair of data and metadata."""
    return shown[0] if isinstance(shown, tuple) and len(shown) == 2 else shown


def _text(name: str, what: Any) -> str | None:
    if what is None:
        return None
    if name in ("json", "data", "chart") or (name.endswith("json") and not isinstance(what, (str, bytes))):
        return json.dumps(what)
    return base64.b64encode(what).decode() if isinstance(what, bytes) else str(what)


class ShowFigures:
    """Redirects ``pyplot.show()`` as soon as pyplot is imported."""

    def __init__(self, show: Callable[[], None]):
        self.show = show
        if pyplot := sys.modules.get("matplotlib.pyplot"):
            self._change(pyplot)
        else:
            sys.meta_path.insert(0, self)

    def _change(self, pyplot: Any) -> None:
        pyplot.show = lambda *args, **kwargs: self.show()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find pyplot, once; do not affect other imports."""
        if name != "matplotlib.pyplot":
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then(module: Any) -> None:
                execute(module)
                self._change(module)

            spec.loader.exec_module = then  # type: ignore[method-assign]
        return spec
