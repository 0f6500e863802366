"""An environment's actions as MCP tools, over streamable HTTP with plain JSON answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rollenv.core.picture_forms import bound, contents
from rollenv.core.pictures import MARK, Picture
from rollenv.core.tools.calls import write_calls
from rollenv.core.version import __version__

STEP: dict[str, Any] = {
    "name": "step",
    "description": "Take an action in the environment. The answer is what you see next.",
    "parameters": {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
}
LOOK: dict[str, Any] = {
    "name": "look",
    "description": "See the pictures of the last observation again. It is no action.",
    "parameters": {"type": "object", "properties": {}},
}
_VERSION = "2025-06-18"


#: A text with bound marks, and its pictures.
_Seen = tuple[str, Sequence[Picture]]


class Tools:
    """A program's tools in an environment: sequential calls, each an action of the episode.

    Args:
        offered: the environment's functions, in OpenAI's form; by default ``step(action)``.
        instructions: the first observation.
        images: its pictures, which the further tool ``look`` shows; a task is a text.
    """

    def __init__(
        self, offered: Sequence[Mapping[str, Any]] = (), instructions: str = "", images: Sequence[Picture] = ()
    ):
        self.functions = [tool["function"] for tool in offered] or [STEP]
        self.steps = self.functions == [STEP]
        self.functions += [LOOK] if images else []
        self.instructions = instructions
        self._seen = bound(MARK * len(images), images), images
        self._turn = asyncio.Lock()
        self._actions: asyncio.Queue[str] = asyncio.Queue()
        self._answer: asyncio.Future[_Seen] | None = None
        """Answers the action in progress."""
        self._over = False

    async def next_action(self) -> str:
        """Wait for the program's next action."""
        return await self._actions.get()

    def show(self, observation: str, images: Sequence[Picture] = ()) -> None:
        """Answer the last action."""
        self._seen = bound(observation, images), images
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._seen)

    def close(self) -> None:
        """Refuse the action in progress and later ones, as the episode is over."""
        self._over = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(_Refused(-32000, "the episode is over"))

    async def answer(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Answer a JSON-RPC message; None for notifications."""
        if "id" not in message:
            return None
        try:
            result = await self._result(str(message.get("method")), message.get("params") or {})
            return {"jsonrpc": "2.0", "id": message["id"], "result": result}
        except _Refused as error:
            return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": error.code, "message": str(error)}}

    async def _result(self, method: str, params: Any) -> dict[str, Any]:
        if not isinstance(params, dict):
            raise _Refused(-32602, "params must be an object")
        if method == "initialize":
            return {
                "protocolVersion": params.get("protocolVersion", _VERSION),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "rollenv", "version": __version__},
                "instructions": self.instructions,
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            keys = {"name": "name", "description": "description", "parameters": "inputSchema"}
            return {"tools": [{keys[k]: v for k, v in one.items() if k in keys} for one in self.functions]}
        if method != "tools/call":
            raise _Refused(-32601, f"there is no method {method!r}")
        name, arguments = params.get("name"), params.get("arguments") or {}
        if name not in [one["name"] for one in self.functions] or not isinstance(arguments, dict):
            raise _Refused(-32602, f"there is no tool {name!r}, or its arguments are no object")
        if name == "look" and LOOK in self.functions:
            return _content(*self._seen)
        if self.steps:
            action = arguments.get("action")
            if not isinstance(action, str):
                return _content("step takes an action, which is a text", failed=True)
        else:
            action = write_calls([(str(name), arguments)])
        async with self._turn:
            if self._over:
                raise _Refused(-32000, "the episode is over")
            self._answer = asyncio.get_running_loop().create_future()
            await self._actions.put(action)
            return _content(*await self._answer)


class _Refused(Exception):
    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


def _content(text: str, images: Sequence[Picture] = (), *, failed: bool = False) -> dict[str, Any]:
    return {"content": contents("mcp", text, images), "isError": failed}
