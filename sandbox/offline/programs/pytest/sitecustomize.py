"""Runs at Python's start and loads the test runner before folders that an agent may have changed."""

import os
import site
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_STANDARD = os.path.dirname(os.__file__)
_ZIPPED = os.path.join(os.path.dirname(_STANDARD), f"python{sys.version_info[0]}{sys.version_info[1]}.zip")
_OWN = [_ZIPPED, _STANDARD, os.path.join(_STANDARD, "lib-dynload")]
sys.path.sort(key=lambda path: (path != _HERE, path not in _OWN))  # before anything else is imported

import contextlib  # noqa: E402
from typing import Any  # noqa: E402


class _OwnFirst:
    """Finds Python's own modules in their folder, even if a script's folder has modules with the same names."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if path is None and name in getattr(sys, "stdlib_module_names", ()):
            return sys.meta_path[-1].find_spec(name, _OWN, target)
        return None


def _is_of_tests() -> bool:
    """Return whether this runs a script of the tests, or code from ``-c``, ``-m`` or standard input."""
    words = iter(getattr(sys, "orig_argv", [])[1:])
    for word in words:
        if not word.startswith("-"):
            return bool(os.path.realpath(word).startswith("/tests/"))
        if word in ("-W", "-X"):
            next(words, None)
        elif word[1:2] not in ("W", "X", "-") and ("c" in word or "m" in word):
            return True
    return True


def _installed() -> list[str]:
    """Return the folders of packages and of PYTHONPATH."""
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [_HERE, *filter(None, own), *site.getsitepackages(), site.getusersitepackages()]


def _is_trusted(path: str) -> bool:
    return path in (_STANDARD, _ZIPPED, *_installed()) or path.startswith(_STANDARD + os.sep)


def _runs_pytest() -> bool:
    words = getattr(sys, "orig_argv", [])[1:6]
    return any(os.path.basename(word) in ("pytest", "py.test") for word in words)


def _only_installed(distributions: Any) -> Any:
    """Limit the search for plugins to folders of installed packages."""
    folders = {os.path.realpath(path) for path in _installed()}

    def found(*arguments: Any, **options: Any) -> Any:
        for each in distributions(*arguments, **options):
            path = getattr(each, "_path", None)
            if path is None or os.path.realpath(os.path.dirname(str(path))) in folders:
                yield each

    return found


def _load_runner() -> None:
    import atexit
    import importlib.metadata

    import rollenv_sessions  # type: ignore[import-not-found]

    rollenv_sessions.begin("start")
    atexit.register(rollenv_sessions.end, "start")
    importlib.metadata.distributions = _only_installed(importlib.metadata.distributions)
    with contextlib.suppress(ImportError):  # Python reports it later
        import pytest  # noqa: F401


_added = [path for path in sys.path if not _is_trusted(path)]
sys.path[:] = [path for path in sys.path if _is_trusted(path)]
if _runs_pytest():
    _load_runner()
elif _is_of_tests():
    sys.meta_path.insert(-1, _OwnFirst)
sys.path += _added  # folders of .pth files come last
