"""Protocols of other projects, each in a file with ``routes(server)``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rollenv.core import UsageError

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from rollenv.serve.server import EnvServer

#: Names for the command line.
PROTOCOLS = ("gem", "openenv", "rock", "e2b", "fusion", "mcp", "ors", "page")


def routes(name: str, server: EnvServer) -> list[BaseRoute]:
    """The routes of a service.

    Args:
        name: one of :data:`PROTOCOLS`.

    Raises:
        UsageError: there is no such service.
    """
    if name not in PROTOCOLS:
        raise UsageError(f"there is no face {name!r}; there are {', '.join(PROTOCOLS)}")
    found: list[BaseRoute] = importlib.import_module(f"rollenv.serve.protocols.{name}").routes(server)
    return found
