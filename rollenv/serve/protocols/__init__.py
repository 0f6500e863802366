"""Wire protocols; each is a module with ``routes(server)``, which returns Starlette routes for ``serve.app`` to mount.

Other packages add protocols through the entry point group ``rollenv.protocols``, each entry naming such a module;
``gem`` is the shortest example.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from rollenv.core.errors import UsageError
from rollenv.core.plugins import entry_points, load

GROUP = "rollenv.protocols"

#: Protocols that come with rollenv. The page is the last: its routes take every path that is left.
_OWN = ("gem", "mcp")


@runtime_checkable
class WireProtocol(Protocol):
    """The module that an entry point names."""

    routes: Callable[..., list[Any]]


def protocols() -> tuple[str, ...]:
    """Return the names of all protocols, for the command line."""
    return (*_OWN, *sorted(entry_points(GROUP, frozenset((*_OWN, "page")))), "page")


def routes_of(name: str) -> Callable[..., list[Any]]:
    """Return the function that makes a protocol's routes for a server."""
    if name not in protocols():
        raise UsageError(f"there is no protocol {name!r}; there are {', '.join(protocols())}")
    own = name in _OWN or name == "page"
    module = importlib.import_module(f"{__name__}.{name}") if own else load(GROUP, name, WireProtocol)
    return module.routes  # type: ignore[no-any-return]
