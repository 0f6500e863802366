"""``reset`` and ``step`` as tools: over JSON-RPC, and as the two kinds of actions that ``MCPToolClient`` sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rollenv.core import RollenvError, UsageError
from rollenv.serve.protocols.openenv.play import Action, Play
from rollenv.serve.responses import json_of

#: What an agent may call.
TOOLS = [
    {
        "name": "reset",
        "description": "Begin an episode and see its first observation.",
        "inputSchema": {"type": "object", "properties": {"seed": {"type": "integer", "minimum": 0}}},
    },
    {"name": "step", "description": "Play a turn.", "inputSchema": Action.model_json_schema()},
]

#: ``type`` of the actions of ``MCPToolClient``.
ACTIONS = ("list_tools", "call_tool")

#: Methods of JSON-RPC, and those of them that need a session of their own over HTTP.
METHODS = ("tools/list", "tools/call")
HTTP_METHODS = ("openenv/session/create", "openenv/session/close", *METHODS)


async def answer(
    asked: dict[str, Any], methods: tuple[str, ...], result: Callable[[str, dict[str, Any]], Awaitable[Any]]
) -> dict[str, Any]:
    """Answer a request of JSON-RPC.

    Args:
        result: called with the method and its parameters.
    """
    number, method, given = asked.get("id"), asked.get("method"), asked.get("params")
    if asked.get("jsonrpc") != "2.0" or not isinstance(method, str):
        return refusal(number, -32600, "not a request of JSON-RPC 2.0")
    if method not in methods:
        return refusal(number, -32601, f"there is no method {method!r:.40}; there are {', '.join(methods)}")
    params = given if isinstance(given, dict) else {}
    try:
        return {"jsonrpc": "2.0", "id": number, "result": await result(method, params)}
    except (RollenvError, ValueError) as error:
        return refusal(number, -32602, str(error))


def refusal(number: Any, code: int, message: str) -> dict[str, Any]:
    """The answer to a request of JSON-RPC that fails."""
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


async def told(play: Play, method: str, given: dict[str, Any]) -> dict[str, Any]:
    """The result of one of :data:`METHODS`."""
    if method == "tools/list":
        return {"tools": TOOLS}
    found = await _called(play, given.get("name"), given.get("arguments") or {})
    return {"content": [{"type": "text", "text": json_of(found)}], "structuredContent": found, "isError": False}


async def act(play: Play, data: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a step with one of :data:`ACTIONS`. A call that fails is told in the observation."""
    if data["type"] == "list_tools":
        tools = [{**tool, "input_schema": tool["inputSchema"]} for tool in TOOLS]
        return {"observation": {"tools": tools}, "reward": None, "done": False, "metadata": {}}
    name = data.get("tool_name")
    seen: dict[str, Any] = {"tool_name": f"{name!s:.200}", "result": None, "error": None}
    try:
        found = await _called(play, name, data.get("arguments") or {})
    except (RollenvError, ValueError) as error:
        kind = "execution_error" if isinstance(error, RollenvError) else "invalid_args"
        if name not in ("reset", "step"):
            kind = "tool_not_found"
        seen["error"] = {"error_type": kind, "message": str(error)}
        return {"observation": seen, "reward": None, "done": False, "metadata": {}}
    return found | {"observation": seen | {"result": found["observation"]}}


async def _called(play: Play, name: Any, given: Any) -> dict[str, Any]:
    """The result of a tool.

    Raises:
        UsageError: there is no such tool.
    """
    if name not in ("reset", "step") or not isinstance(given, dict):
        raise UsageError(f"there is no tool {name!r:.40}; there are reset and step, which take an object")
    return await (play.reset(given) if name == "reset" else play.step(given))
