"""MCP over streamable HTTP."""

from __future__ import annotations

from starlette.routing import BaseRoute

from rollenv.serve.app import Server


def routes(server: Server) -> list[BaseRoute]:
    """None yet."""
    return []
