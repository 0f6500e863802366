"""Panels by name: rollenv's own, those of other packages, and files."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from types import ModuleType

from rollenv.core.errors import UsageError, did_you_mean
from rollenv.core.plugins import load_all
from rollenv.panels.panel import Panel, read_panel

#: Entry points of packages with panels: each names a module whose folder holds them.
GROUP = "rollenv.panels"
_OWN = Path(__file__).parent / "ours"


#: Published numbers on the panels of a folder.
PUBLISHED = "published.toml"


@functools.cache
def folders() -> list[Path]:
    """Folders with installed panels."""
    modules = load_all(GROUP, kind=ModuleType).values()
    places = (getattr(module, "__path__", None) or [Path(module.__file__).parent] for module in modules)
    return [_OWN, *map(Path, itertools.chain(*places))]


@functools.cache
def _files() -> dict[str, Path]:
    found = (file for folder in reversed(folders()) for file in sorted(folder.glob("*.toml")))
    return {file.stem: file for file in found if file.with_suffix(".jsonl").is_file()}


def panels() -> list[str]:
    """Names of all panels that are installed."""
    return sorted(_files())


def is_panel(name: str) -> bool:
    """Return whether a name is a panel's, or a file that may hold one: no environment's id is either."""
    return name.endswith(".toml") or (":" not in name and name in _files())


def load_panel(name: str, *, trust: bool = False) -> Panel:
    """Return an installed panel by its name, or one from a file ``PATH.toml``.

    Raises:
        UsageError: there is none, or a file names what is not trusted (:func:`read_panel`).
        PanelError: the file is no panel, or was changed after it was made.
    """
    if name.endswith(".toml"):
        return read_panel(Path(name).expanduser(), trust=trust)
    if name not in _files():
        otherwise = "`rollenv panel list` shows all; a file ends in .toml"
        raise UsageError(f"there is no panel {name!r:.80}; {did_you_mean(name, _files(), otherwise)}")
    return read_panel(_files()[name], trust=True)  # the package that has it is installed
