"""Wire protocols: entry points of ``rollenv.protocols``, each naming a module with ``routes(server)``.

It returns Starlette routes. The page is the only one that is part of the server: it is no other project's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.core.plugins import entry_points, load

GROUP = "rollenv.protocols"

#: The last protocol: its routes take every path that is left.
_PAGE = "page"


def protocols() -> tuple[str, ...]:
    """Return the names of all protocols, for the command line."""
    return (*sorted(entry_points(GROUP, frozenset([_PAGE]))), _PAGE)


def routes_of(name: str) -> Callable[..., list[Any]]:
    """Return the function that makes a protocol's routes for a server."""
    if name not in protocols():
        raise UsageError(f"there is no protocol {name!r}; there are {', '.join(protocols())}")
    module = importlib.import_module(f"{__name__}.{_PAGE}") if name == _PAGE else load(GROUP, name)
    return module.routes  # type: ignore[no-any-return]
