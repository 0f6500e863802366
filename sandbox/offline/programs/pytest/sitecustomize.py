"""Python runs this at its start: what runs tests is loaded before the folders that an agent may have filled."""

import contextlib
import os
import site
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_STANDARD = os.path.dirname(os.__file__)
_ZIPPED = os.path.join(os.path.dirname(_STANDARD), f"python{sys.version_info[0]}{sys.version_info[1]}.zip")


def _installed() -> list[str]:
    """Where packages are installed, and where the caller says that modules are."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [_HERE, *filter(None, given), *site.getsitepackages(), site.getusersitepackages()]


def _is_trusted(path: str) -> bool:
    return path in (_STANDARD, _ZIPPED, *_installed()) or path.startswith(_STANDARD + os.sep)


def _runs_pytest() -> bool:
    words = getattr(sys, "orig_argv", [])[1:6]
    return any(os.path.basename(word) in ("pytest", "py.test") for word in words)


def _only_installed(distributions: Any) -> Any:
    """Plugins are looked for where packages are installed, and not in the working directory."""
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
    with contextlib.suppress(ImportError):  # Python says so itself
        import pytest  # noqa: F401


_added = [path for path in sys.path if not _is_trusted(path)]
sys.path[:] = [path for path in sys.path if _is_trusted(path)]
if _runs_pytest():
    _load_runner()
sys.path += _added  # folders that a .pth names come last
