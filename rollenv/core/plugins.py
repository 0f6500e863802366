"""Entry points through which other packages add parts; rollenv's own plug-ins use them too.

The groups are ``rollenv.envs``, ``rollenv.namespaces``, ``rollenv.suites``, ``rollenv.protocols``, ``rollenv.commands``
and ``rollenv.trackers``.
"""

from __future__ import annotations

import functools
import importlib.metadata
import warnings
from typing import Any

from rollenv.core.errors import BadEntryPoint, MissingExtra


@functools.cache
def entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of a group by name, such as ``rollenv.protocols``."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}


def load(group: str, name: str) -> Any:
    """Import what an entry point names.

    Raises:
        BadEntryPoint: it cannot be imported.
        MissingExtra: it needs a package that is not installed.
    """
    entry = entry_points(group)[name]
    try:
        return entry.load()
    except MissingExtra:
        raise
    except Exception as error:
        raise BadEntryPoint(
            f"the entry point {name} = {entry.value!r} of {group} cannot be loaded: {error!r}"
        ) from error


def load_all(group: str) -> dict[str, Any]:
    """Import what all entry points of a group name; a broken one is reported and left out."""
    loaded = {}
    for name in entry_points(group):
        try:
            loaded[name] = load(group, name)
        except (BadEntryPoint, MissingExtra) as error:
            warnings.warn(str(error), stacklevel=2)
    return loaded
