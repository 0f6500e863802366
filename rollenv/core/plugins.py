"""Entry points through which other packages add parts; rollenv's own plug-ins use them too.

The groups are ``rollenv.envs``, ``rollenv.namespaces``, ``rollenv.suites``, ``rollenv.protocols``,
``rollenv.dialects``, ``rollenv.harnesses``, ``rollenv.commands``, ``rollenv.exports``, ``rollenv.launchers``,
``rollenv.players``, ``rollenv.rewards``, ``rollenv.trackers``, ``rollenv.vision`` and ``rollenv.calls``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from rollenv.core.errors import BadEntryPoint, MissingExtra, RollenvError, UsageError


@functools.cache
def entry_points(group: str, own: frozenset[str] = frozenset()) -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of a group by name, such as ``rollenv.protocols``.

    An entry point of another package with the name of a part of rollenv is reported and left out.

    Args:
        own: names of rollenv's parts that are no entry points.
    """
    found: dict[str, importlib.metadata.EntryPoint] = {}
    every = importlib.metadata.entry_points(group=group)

    def is_foreign(entry: importlib.metadata.EntryPoint) -> bool:
        return entry.dist is None or entry.dist.name != "rollenv"

    for entry in sorted(every, key=is_foreign):
        if (entry.name in own and is_foreign(entry)) or (
            entry.name in found and found[entry.name].value != entry.value
        ):
            whose = entry.dist.name if entry.dist else "a package"
            taken = f"the name is taken by {found[entry.name].value if entry.name in found else 'rollenv'}"
            warnings.warn(f"the entry point {entry.name} of {group} in {whose} is left out: {taken}", stacklevel=2)
        else:
            found[entry.name] = entry
    return found


def load(group: str, name: str, kind: Any = object) -> Any:
    """Import what an entry point names, an instance of ``kind``.

    Raises:
        BadEntryPoint: no installed package has it, it cannot be imported, or it is something else.
        MissingExtra: it needs a package that is not installed.
    """
    entry = entry_points(group).get(name)
    if entry is None:
        raise BadEntryPoint(f"no installed package has an entry point {name} of {group}: reinstall the one that should")
    try:
        found = entry.load()
    except MissingExtra:
        raise
    except (Exception, SystemExit) as error:
        raise BadEntryPoint(
            f"the entry point {name} = {entry.value!r} of {group} cannot be loaded: {error!r}"
        ) from error
    if not isinstance(found, kind):
        raise BadEntryPoint(f"the entry point {name} of {group} is no {kind.__name__}, but {found!r:.100}")
    return found


def load_all(group: str, own: Iterable[str] = (), kind: Any = object) -> dict[str, Any]:
    """Import what all entry points of a group name; a broken one, or one with a name in ``own``, is left out and
    reported."""
    loaded = {}
    for name in entry_points(group, frozenset(own)):
        try:
            loaded[name] = load(group, name, kind)
        except (BadEntryPoint, MissingExtra) as error:
            warnings.warn(str(error), stacklevel=2)
    return loaded


def function_at(name: str, what: str, *folders: str | Path) -> Callable[..., Any]:
    """Import ``module:function`` from an installed package, the current folder or one of ``folders``, or
    ``file.py:function``.

    Where the module's folder is no part of ``sys.path`` yet, it becomes its last one, so nothing installed is hidden.

    Args:
        what: what the function is, for errors: "the wrapper".

    Raises:
        UsageError: there is no such function, or its module cannot be imported.
        MissingExtra: it needs a package that is not installed.
    """
    module, colon, attribute = name.rpartition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{what} {name!r} is no module:function")
    looked = list(dict.fromkeys(os.path.abspath(folder) for folder in (os.curdir, *folders)))
    for folder in looked:
        if not _found(module.partition(".")[0]) and is_module(module, folder):
            sys.path.append(folder)
            importlib.invalidate_caches()
    try:
        imported = _imported(Path(module).resolve()) if module.endswith(".py") else importlib.import_module(module)
        if threading.current_thread() is threading.main_thread() and os.getcwd() != looked[0]:
            os.chdir(looked[0])  # in a worker's thread, another environment may have changed it meanwhile
            raise UsageError("it changes the current folder (os.chdir): paths given to rollenv would mean others")
        function = functools.reduce(getattr, attribute.split("."), imported)
    except MissingExtra:
        raise
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name and module.startswith(error.name):
            hint = f"; looked into installed packages and {', '.join(looked)}: add another folder by PYTHONPATH=FOLDER"
        raise UsageError(f"{what} {name!r} cannot be loaded: {at_line(error)}{hint}") from error
    if not callable(function):
        raise UsageError(f"{what} {name!r} is no function, but {type(function).__name__}")
    return function


_LOADING = threading.RLock()


def _imported(file: Path) -> ModuleType:
    """Import a file under its path as name; its folder becomes the last one of ``sys.path``."""
    name = str(file)
    with _LOADING:
        if name not in sys.modules:
            found = importlib.util.spec_from_file_location(name, file)
            if found is None or found.loader is None:
                raise ImportError(f"{name} is no module")
            if str(file.parent) not in sys.path:
                sys.path.append(str(file.parent))
            sys.modules[name] = importlib.util.module_from_spec(found)
            try:
                found.loader.exec_module(sys.modules[name])
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


def is_module(name: str, folder: str | Path = os.curdir) -> bool:
    """Return whether the first part of a module's name is installed or in a folder, without importing it."""
    first = Path(folder, name.partition(".")[0])
    if not all(map(str.isidentifier, name.split("."))):
        return False
    return first.with_suffix(".py").is_file() or first.is_dir() or _found(first.name)


def _found(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@contextlib.contextmanager
def users_code(what: str, kind: Callable[[str], RollenvError] = UsageError) -> Iterator[None]:
    """Turn what a user's function or environment raises into an error with its line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if hasattr(error, "exit_code"):  # raised on purpose, as a sandbox's are
            raise
        hint = ": the arrays of a batch are read-only, copy them first" if "read-only" in str(error) else ""
        raise kind(f"{what} failed: {at_line(error)}{hint}") from error


def at_line(error: BaseException) -> str:
    """Describe an exception by class, text and the last line that is not Python's, rollenv's or a package's."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    frames = list(traceback.extract_tb(error.__traceback__))
    own = str(Path(__file__).parents[1]), os.path.dirname(os.__file__), "<frozen"
    frames = [frame for frame in frames if not frame.filename.startswith(own)]
    frames = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    if frames and not isinstance(error, ImportError | SyntaxError):
        text += f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    return text
