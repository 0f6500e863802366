"""Notebook syntax: ``!command`` and ``%magic`` lines, and ``%%magic`` cells.

A cell is rewritten only if it is not valid Python. Lines inside strings and brackets are not rewritten.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import io
import os
import re
import signal
import sys
import time
import types
from collections.abc import Callable
from typing import Any

_ASSIGNED = re.compile(r"(\s*)((?:[\w.\[\]'\", ]|\*)+?\s*=\s*)?([!%])(?![=%])(.*)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_EXPANDED = re.compile(r"\{([^{}\n]+)\}|(?<!\$)\$([A-Za-z_]\w*)")
_SHELL_WORDS = ("ls", "cat", "cp", "mv", "rm", "mkdir", "rmdir")
_SCRIPTS = {"bash": "bash", "sh": "sh", "perl": "perl", "ruby": "ruby", "javascript_node": "node", "node": "node"}
_SHOWN = {"html": "html", "HTML": "html", "markdown": "markdown", "latex": "latex", "svg": "svg", "SVG": "svg"}
_SHOWN |= {"javascript": "javascript", "js": "javascript"}


class MagicError(Exception):
    """An unknown magic, or wrong use of one."""


MagicError.__name__ = "UsageError"  # the name that a cell's error has, as in IPython


def changed(code: str) -> str:
    """Rewrite a cell to Python, unless it is valid Python or has neither magics nor commands."""
    head, _, body = code.lstrip("\n").partition("\n")
    if head.startswith("%%") and (name := _WORD.match(head, 2)):
        rest = head[name.end() :].strip()
        return f"get_ipython().run_cell_magic({name[0]!r}, {rest!r}, {body!r})"
    for code in (code, _dedented(code)):  # noqa: B020
        with contextlib.suppress(SyntaxError, ValueError, MemoryError, RecursionError):
            ast.parse(code)
            return code
    if not any(line.lstrip().startswith(("!", "%")) or "=" in line for line in code.splitlines()):
        return code
    return _changed_lines(code.split("\n"))


def _dedented(code: str) -> str:
    """Remove the indentation of the first line from all lines."""
    lines = code.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    return "\n".join(line.removeprefix(indent) for line in lines)


def _changed_lines(lines: list[str]) -> str:
    rewritten: list[str] = []
    at, inside = 0, ""  # open brackets, then the quotes of an open string
    while at < len(lines):
        line = lines[at]
        at += 1
        if inside or not _ASSIGNED.fullmatch(line):
            inside = _open_after(line, inside)
            rewritten.append(line)
            continue
        extra = 0
        while line.endswith("\\") and at < len(lines):
            line = line[:-1] + lines[at].lstrip()
            at, extra = at + 1, extra + 1
        rewritten.append(_call(*_ASSIGNED.fullmatch(line).groups()))  # type: ignore[union-attr]
        rewritten += [""] * extra  # keep the numbers of later lines
    return "\n".join(rewritten)


def _open_after(line: str, inside: str) -> str:
    """Return what is open at the end of a line: ``(`` for each bracket, the quotes of a string, a backslash."""
    brackets, quotes = inside.count("("), inside.strip("(\\")
    at = 0
    while at < len(line):
        if quotes:
            if line[at] == "\\":
                at += 1
            elif line.startswith(quotes, at):
                at, quotes = at + len(quotes) - 1, ""
        elif line[at] == "#":
            break
        elif line[at] in "\"'":
            quotes = line[at] * 3 if line.startswith(line[at] * 3, at) else line[at]
            at += len(quotes) - 1
        elif line[at] in "([{":
            brackets += 1
        elif line[at] in ")]}":
            brackets = max(0, brackets - 1)
        at += 1
    if len(quotes) == 1 and not line.endswith("\\"):
        quotes = ""  # a string of one line ends with the line
    return "(" * brackets + quotes + ("\\" if line.endswith("\\") and not quotes else "")


def _call(indent: str, target: str | None, mark: str, rest: str) -> str:
    if mark == "!":
        how = "getoutput" if target or rest.startswith("!") else "system"
        return f"{indent}{target or ''}get_ipython().{how}({rest.lstrip('!').strip()!r})"
    name = _WORD.match(rest)
    if name is None:
        return f"{indent}{target or ''}{mark}{rest}"
    return f"{indent}{target or ''}get_ipython().run_line_magic({name[0]!r}, {rest[name.end() :].strip()!r})"


class Magics:
    """The commands and magics of one namespace; ``get_ipython()`` returns it.

    Args:
        execute: runs code as a cell, or as a file with a name.
        show: reports representations (name to content) as a result.
    """

    def __init__(self, namespace: dict[str, Any], execute: Callable[..., None], show: Callable[[dict[str, Any]], None]):
        self.user_ns, self._execute, self._show = namespace, execute, show
        self._start = os.getcwd()

    def run_cell(self, code: str) -> None:
        """Run code as a cell."""
        self._execute(code)

    def run_line_magic(self, name: str, rest: str) -> Any:
        """Run ``%name rest``."""
        if name not in ("time", "timeit"):
            rest = self._expand(rest)
        if name in _SHELL_WORDS:
            return self.system(f"{name} {rest}")
        return self._find("line", name)(rest)

    def run_cell_magic(self, name: str, rest: str, body: str) -> Any:
        """Run ``%%name rest`` with the lines below it."""
        if name in _SCRIPTS:
            return self._script([_SCRIPTS[name], *rest.split()], body)
        if name in _SHOWN:
            return self._show({_SHOWN[name]: body})
        return self._find("cell", name)(rest, body)

    def _find(self, kind: str, name: str) -> Callable[..., Any]:
        method = getattr(self, f"_{kind}_{name}", None)
        if method is None:
            mark = "%" if kind == "line" else "%%"
            raise MagicError(f"there is no magic {mark}{name} here; choose from {', '.join(self._names(kind))}")
        return method  # type: ignore[no-any-return]

    def _names(self, kind: str) -> list[str]:
        names = [name[6:] for name in dir(self) if name.startswith(f"_{kind}_")]
        more = _SHELL_WORDS if kind == "line" else (*_SCRIPTS, *_SHOWN)
        mark = "%" if kind == "line" else "%%"
        return [mark + name for name in sorted({*names, *more})]

    # -- commands ----------------------------------------------------------------------------------------------------

    def system(self, command: str) -> None:
        """Run ``!command``, whose output becomes the cell's."""
        self.user_ns["_exit_code"] = self._program(["/bin/sh", "-c", self._expand(command)])[0]

    def getoutput(self, command: str) -> list[str]:
        """Run ``lines = !command``."""
        status, data = self._program(["/bin/sh", "-c", self._expand(command)], taken=True)
        self.user_ns["_exit_code"] = status
        return data.decode(errors="replace").splitlines()

    def _expand(self, text: str) -> str:
        """Substitute ``{expression}`` and ``$name`` from the namespace; leave unknown ones unchanged."""

        def value(match: re.Match[str]) -> str:
            expression = match[1] or match[2]
            if _WORD.fullmatch(expression) and expression not in self.user_ns:
                return match[0]
            try:
                return str(eval(expression, self.user_ns))
            except Exception:
                return match[0]

        return _EXPANDED.sub(value, text)

    def _script(self, command: list[str], body: str) -> None:
        import subprocess

        status, _ = self._program(command, body.encode())
        if status:
            raise subprocess.CalledProcessError(status, command)

    @staticmethod
    def _program(command: list[str], data: bytes = b"", taken: bool = False) -> tuple[int, bytes]:
        """Run a program in its own process group, which is killed if the cell is interrupted."""
        import subprocess

        pipe, out = subprocess.PIPE, subprocess.PIPE if taken else None
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            process = subprocess.Popen(command, stdin=pipe, stdout=out, preexec_fn=lambda: os.setpgid(0, 0))
        except FileNotFoundError:
            raise MagicError(f"there is no program {command[0]} in the sandbox") from None
        try:
            output, _ = process.communicate(data)
        except BaseException:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return process.returncode if process.returncode >= 0 else 128 - process.returncode, output or b""

    # -- lines -------------------------------------------------------------------------------------------------------

    def _line_pwd(self, _: str) -> str:
        return os.getcwd()

    def _line_cd(self, rest: str) -> None:
        os.chdir(os.path.expanduser(rest.strip("'\"")) or self._start)
        print(os.getcwd())  # noqa: T201

    def _line_env(self, rest: str) -> Any:
        name, sign, value = rest.partition("=")
        if not sign:
            name, _, value = rest.partition(" ")
        if not rest:
            return dict(os.environ)
        if not sign and not value:
            return os.environ.get(name)
        os.environ[name.strip()] = value.strip()
        print(f"env: {name.strip()}={value.strip()}")  # noqa: T201
        return None

    _line_set_env = _line_env

    def _own_names(self) -> list[str]:
        return sorted(n for n in self.user_ns if not n.startswith("_") and n not in ("display", "get_ipython"))

    def _line_who(self, _: str) -> None:
        print("\t".join(self._own_names()) or "Interactive namespace is empty.")  # noqa: T201

    def _line_who_ls(self, _: str) -> list[str]:
        return self._own_names()

    def _line_whos(self, _: str) -> None:
        for name in self._own_names():
            value = self.user_ns[name]
            print(f"{name}\t{type(value).__name__}\t{repr(value)[:60]}")  # noqa: T201

    def _line_time(self, rest: str) -> Any:
        return self._cell_time("", rest, value=True)

    def _line_timeit(self, rest: str) -> None:
        self._cell_timeit(rest, "")

    def _line_matplotlib(self, rest: str) -> None:
        if rest and not rest.startswith(("inline", "-", "agg")):
            print(f"figures are results here; %matplotlib {rest} changes nothing", file=sys.stderr)  # noqa: T201

    def _nothing(self, _: str) -> None:
        """Ignore a magic that sets up a notebook."""

    _line_config = _line_load_ext = _line_reload_ext = _line_autoreload = _nothing

    def _line_pip(self, _: str) -> None:
        raise MagicError(
            "the sandbox has no network, so nothing can be installed in it; pass packages= or another image"
        )

    _line_conda = _line_mamba = _line_uv = _line_pip

    def _line_run(self, rest: str) -> None:
        with open(rest.split()[0] if rest else "", encoding="utf-8") as file:
            self._execute(file.read(), file.name)

    def _line_reset(self, _: str) -> None:
        for name in self._own_names():
            del self.user_ns[name]

    def _line_lsmagic(self, _: str) -> str:
        return " ".join(self._names("line") + self._names("cell"))

    # -- cells -------------------------------------------------------------------------------------------------------

    def _cell_time(self, rest: str, body: str, value: bool = False) -> Any:
        wall, spent, result = time.perf_counter(), time.process_time(), None
        try:
            if value and (expression := _expression(body)):
                result = eval(compile(expression, "<code>", "eval", dont_inherit=True), self.user_ns)
            else:
                self._execute(f"{rest}\n{body}" if rest else body)
        finally:
            wall, spent = time.perf_counter() - wall, time.process_time() - spent
            print(f"CPU times: {_duration(spent)}\nWall time: {_duration(wall)}")  # noqa: T201
        return result

    def _cell_timeit(self, rest: str, body: str) -> None:
        import timeit

        number, repeat, words = 0, 7, rest.split(" ")
        while words and words[0].startswith(("-n", "-r")):
            word = words.pop(0)
            amount = int(word[2:] or words.pop(0))
            number, repeat = (amount, repeat) if word[1] == "n" else (number, amount)
        rest = " ".join(words)
        timer = timeit.Timer(body or rest, rest if body else "pass", globals=self.user_ns)
        number = number or timer.autorange()[0]
        each = [seconds / number for seconds in timer.repeat(max(repeat, 1), number)]
        mean = sum(each) / len(each)
        spread = (sum((s - mean) ** 2 for s in each) / len(each)) ** 0.5
        runs = f"mean ± std. dev. of {len(each)} runs, {number} loops each"
        print(f"{_duration(mean)} ± {_duration(spread)} per loop ({runs})")  # noqa: T201

    def _cell_capture(self, rest: str, body: str) -> None:
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            self._execute(body)
        if rest and not rest.startswith("-"):
            self.user_ns[rest.split()[0]] = Captured(out.getvalue(), errors.getvalue())

    def _cell_writefile(self, rest: str, body: str) -> None:
        words = rest.split()
        if not words or (words[0] == "-a" and len(words) < 2):
            raise MagicError("%%writefile needs a name: %%writefile [-a] name")
        with open(words[-1].strip("'\""), "a" if words[0] == "-a" else "w", encoding="utf-8") as file:
            file.write(body)
        print(f"Writing {words[-1]}")  # noqa: T201

    def _cell_script(self, rest: str, body: str) -> None:
        self._script(rest.split() or ["/bin/sh"], body)

    def _cell_python(self, rest: str, body: str) -> None:
        self._script([sys.executable or "python3", "-"], body)

    _cell_python3 = _cell_python


class Captured:
    """The output of a cell."""

    def __init__(self, stdout: str, stderr: str):
        self.stdout, self.stderr = stdout, stderr

    def __str__(self) -> str:
        return self.stdout

    def show(self) -> None:
        """Write the captured output."""
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)


def _expression(text: str) -> ast.Expression | None:
    with contextlib.suppress(SyntaxError):
        return ast.parse(text.strip(), "<code>", "eval")
    return None


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


class Shown:
    """A value with one representation, as those of ``IPython.display``.

    Args:
        data: the content; a text for a picture is the name of its file.
    """

    name = ""

    def __init__(self, data: Any = None, filename: str | None = None, **_: Any):
        if self.name == "png" and isinstance(data, str):
            filename = data
        if filename is not None:
            with open(filename, "rb") as file:
                data = file.read()
        self.data = data

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        jpeg = isinstance(self.data, bytes) and self.data.startswith(b"\xff\xd8")
        return {"jpeg" if jpeg else self.name: self.data}


_CLASSES = {"HTML": "html", "Markdown": "markdown", "Latex": "latex", "SVG": "svg", "JSON": "json", "Image": "png"}
_CLASSES |= {"Javascript": "javascript"}


class OfferIPython(importlib.abc.Loader):
    """Finds ``IPython.display`` where the package is not installed: the last finder of modules."""

    def __init__(self, display: Callable[..., None]):
        package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        # There is no shell: matplotlib and others would use more of it than there is.
        vars(package).update(display=module, get_ipython=lambda: None, version_info=(9, 0, 0), __path__=[])
        vars(module).update(display=display, clear_output=lambda wait=False: None)
        vars(module).update({name: type(name, (Shown,), {"name": short}) for name, short in _CLASSES.items()})
        self._modules = {"IPython": package, "IPython.display": module}
        sys.meta_path.append(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self) if name in self._modules else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module as it is."""
