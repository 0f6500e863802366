"""The functions of a backend as an MCP server over stdio, for any MCP client.

``python -m rollenv.core.tools.mcp_server tools:Shop-v0 --seed 3`` serves the world of one task: its functions, and its
request as the server's instructions. The world lasts as long as the client's connection.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Collection
from typing import Any

from rollenv.core.errors import RollenvError, UsageError
from rollenv.core.needs import extra
from rollenv.core.picture_forms import contents
from rollenv.core.registry import make
from rollenv.core.tools.backend import Backend

with extra("tools", "An MCP server"):
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server


def server(backend: Backend, names: Collection[str] | None = None, instructions: str = "") -> Server[Any]:
    """An MCP server whose tools are the backend's functions."""
    tools = [
        types.Tool(
            name=schema["function"]["name"],
            description=schema["function"]["description"],
            input_schema=schema["function"]["parameters"],
        )
        for schema in backend.schemas(names)
    ]

    async def listed(context: Any, given: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def called(context: Any, given: types.CallToolRequestParams) -> types.CallToolResult:
        answer = backend.call(given.name, given.arguments or {}, names)
        content = contents("mcp", answer.text, answer.images)
        return types.CallToolResult.model_validate({"content": content, "isError": answer.failed})

    return Server("rollenv", instructions=instructions or None, on_list_tools=listed, on_call_tool=called)


async def serve_stdio(backend: Backend, names: Collection[str] | None = None, instructions: str = "") -> None:
    """Serve on standard input and output until the client leaves."""
    protocol = server(backend, names, instructions)
    async with stdio_server() as (read, write):
        await protocol.run(read, write, protocol.create_initialization_options())


def main(arguments: list[str] | None = None) -> None:
    """Serve the world of one task; see the module."""
    parser = argparse.ArgumentParser(prog="python -m rollenv.core.tools.mcp_server", description=main.__doc__)
    parser.add_argument("env_id", help="an environment of the family tools:")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--index", type=int, help="the number of a data set's task")
    given = parser.parse_args(arguments)
    try:
        env = make(given.env_id)
        env.reset(given.seed, options=None if given.index is None else {"index": given.index})
        problem = getattr(env.unwrapped, "current", None)
        if problem is None or not isinstance(problem.backend, Backend):
            raise UsageError(f"{given.env_id} has no backend to serve; choose an id of the family tools:")
    except RollenvError as error:
        sys.exit(f"error: {error}")
    instructions = "\n\n".join(part for part in (problem.policy, problem.question) if part)
    asyncio.run(serve_stdio(problem.backend, problem.tools, instructions))


if __name__ == "__main__":
    main()
