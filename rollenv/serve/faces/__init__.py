"""Protocols of other projects, each in a file with ``routes(server)``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rollenv.core import UsageError

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from rollenv.serve.app import Server

#: Names for the command line.
FACES = ("gem", "openenv", "rock", "e2b", "fusion", "mcp", "ors", "page")


def routes(name: str, server: Server) -> list[BaseRoute]:
    """The routes of a face.

    Args:
        name: one of :data:`FACES`.

    Raises:
        UsageError: there is no such face.
    """
    if name not in FACES:
        raise UsageError(f"there is no face {name!r}; there are {', '.join(FACES)}")
    found: list[BaseRoute] = importlib.import_module(f"rollenv.serve.faces.{name}").routes(server)
    return found
