"""The tools of Model Context Protocol servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rollenv.core.errors import MissingExtra, RollenvError, UsageError
from rollenv.core.needs import extra
from rollenv.core.tools.calls import ToolCall, unknown_argument
from rollenv.core.tools.function import CallableTool, text_of

#: Maximum seconds for the start of a server.
_START = 30.0


class MCPError(RollenvError):
    """An MCP server cannot be reached, or closed the connection."""


class MCPTool(CallableTool):
    """Lets an agent call the tools of one or more MCP servers. One object may serve many threads.

    One session to each server stays open, in its own thread. With several servers, tools whose names collide are
    called ``SERVER_TOOL``.

    Args:
        config: a URL (streamable HTTP), a path of a JSON file, or ``{"mcpServers": {name: SERVER}}``, where a server is
            ``{"url": ..., "headers": {...}}`` or ``{"command": ..., "args": [...], "env": {...}, "cwd": ...}``.
        execution_timeout: seconds for a call; it holds. A server may take 30 to start.
        max_retries: maximum retries of a call after connection errors.
        validate_on_init: connect now, and raise if that fails; else when first used.

    Raises:
        MCPError: if a server cannot be reached.
    """

    tool_type = "mcp"

    def __init__(
        self,
        config: str | Path | Mapping[str, Any],
        *,
        execution_timeout: float = 30.0,
        max_retries: int = 3,
        validate_on_init: bool = True,
        num_workers: int = 1,
    ):
        super().__init__(num_workers)
        self._servers = _servers(config)
        self.execution_timeout, self.max_retries = execution_timeout, max_retries
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._clients: dict[str, Any] = {}
        self._tools: dict[str, tuple[str, Any]] = {}
        if validate_on_init:
            self._connect()

    @classmethod
    def from_url(cls, url: str, **kwargs: Any) -> Self:
        """Connect to a server at a URL."""
        return cls(url, **kwargs)

    @classmethod
    def from_config_file(cls, path: str | Path, **kwargs: Any) -> Self:
        """Connect to the servers listed in a JSON file."""
        return cls(Path(path), **kwargs)

    @classmethod
    def from_local_command(cls, command: str, args: Sequence[str] = (), **kwargs: Any) -> Self:
        """Start a server as a process that ends with this object."""
        return cls({"mcpServers": {"local": {"command": command, "args": list(args)}}}, **kwargs)

    @classmethod
    def from_multi_server(cls, servers: Mapping[str, Any], **kwargs: Any) -> Self:
        """Connect to several servers."""
        return cls({"mcpServers": dict(servers)}, **kwargs)

    def get_available_tools(self) -> list[dict[str, Any]]:
        """The schemas of all tools."""
        return self.schemas()

    def schemas(self) -> list[dict[str, Any]]:
        self._connect()
        return [
            {
                "type": "function",
                "function": {"name": name, "description": tool.description or "", "parameters": tool.input_schema},
            }
            for name, (_, tool) in self._tools.items()
        ]

    def call(self, call: ToolCall) -> tuple[bool, str]:
        for attempt in range(self.max_retries + 1):
            try:
                self._connect()
                server, tool = self._tools[call.name]
                if wrong := unknown_argument(call, tool.input_schema):
                    return True, f"The call of {call.name} failed: {wrong}."
                client = self._clients[server]
                result = self._run(client.call_tool(tool.name, call.arguments), self.execution_timeout)
            except TimeoutError:
                return True, f"The call of {call.name} failed: it took longer than {self.execution_timeout:g} s."
            except (MissingExtra, UsageError):  # for the user to fix, not the agent
                raise
            except Exception as error:
                if attempt < self.max_retries and _broken(error):
                    self.close()
                    continue
                return True, f"The call of {call.name} failed: {str(error)[:1000]}"
            parts = [getattr(part, "text", None) or f"[{part.type}]" for part in result.content]
            return bool(result.is_error), text_of("\n".join(parts))
        raise AssertionError("the last attempt returns")

    def close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None and self._stop is not None:
                loop.call_soon_threadsafe(self._stop.set)
                self._thread.join(10)

    # -- the thread with the sessions --------------------------------------------------------------------------------

    def _connect(self) -> None:
        with self._lock:
            if self._loop is not None:
                return
            ready: list[BaseException] = []
            up = threading.Event()
            self._thread = threading.Thread(target=self._serve, args=(up, ready), name="mcp", daemon=True)
            self._thread.start()
            up.wait()
            if ready:
                self._loop = None
                error = root = ready[0]
                if isinstance(error, MissingExtra):
                    raise error
                while isinstance(root, BaseExceptionGroup):
                    root = root.exceptions[0]
                servers = ", ".join(self._servers)
                raise MCPError(f"cannot reach the MCP servers {servers}: {type(root).__name__}: {root}") from error

    def _serve(self, up: threading.Event, failure: list[BaseException]) -> None:
        try:
            asyncio.run(self._sessions(up))
        except BaseException as error:
            failure.append(error)
        finally:
            up.set()

    async def _sessions(self, up: threading.Event) -> None:
        with extra("tools", "Calling MCP tools"):
            import httpx2
            from mcp import Client, StdioServerParameters
            from mcp.client.streamable_http import streamable_http_client
        async with contextlib.AsyncExitStack() as stack:
            found: dict[str, list[Any]] = {}
            for name, server in self._servers.items():
                target: Any = StdioServerParameters(**server) if "command" in server else server["url"]
                if server.get("headers"):
                    patience = httpx2.Timeout(self.execution_timeout)
                    http = httpx2.AsyncClient(headers=server["headers"], timeout=patience)
                    await stack.enter_async_context(http)
                    target = streamable_http_client(server["url"], http_client=http)
                async with asyncio.timeout(max(self.execution_timeout, _START)):
                    self._clients[name] = client = await stack.enter_async_context(Client(target))
                    found[name] = (await client.list_tools()).tools
            counts = Counter(tool.name for tools in found.values() for tool in tools)
            self._tools = {
                tool.name if counts[tool.name] == 1 else f"{server}_{tool.name}": (server, tool)
                for server, tools in found.items()
                for tool in tools
            }
            self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
            up.set()
            await self._stop.wait()

    def _run(self, work: Coroutine[Any, Any, Any], timeout: float) -> Any:
        loop = self._loop
        if loop is None:
            work.close()
            raise ConnectionError("the session is closed")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise


def _servers(config: str | Path | Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    if isinstance(config, str) and config.startswith(("http://", "https://")):
        return {"server": {"url": config}}
    if isinstance(config, str | Path):
        try:
            config = json.loads(Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read the MCP configuration {str(config)!r}: {error}") from error
    servers = config.get("mcpServers") if isinstance(config, Mapping) else None
    if not isinstance(servers, Mapping) or not servers:
        raise UsageError('an MCP configuration is a URL or {"mcpServers": {NAME: {"url": ...} or {"command": ...}}}')
    for name, server in servers.items():
        if not isinstance(server, Mapping) or len({"url", "command"} & server.keys()) != 1:
            raise UsageError(f"the MCP server {name!r} needs either a url or a command")
        known = _OF_A_URL if "url" in server else _OF_A_COMMAND
        if unknown := sorted(server.keys() - known - _SAID_ANYWAY):
            raise UsageError(
                f"the MCP server {name!r} has the unknown key {unknown[0]!r}; known keys: {', '.join(sorted(known))}"
            )
    return {name: {k: v for k, v in s.items() if k not in _SAID_ANYWAY} for name, s in servers.items()}


_OF_A_URL, _OF_A_COMMAND = {"url", "headers"}, {"command", "args", "env", "cwd"}
#: Redundant keys in the files of other programs.
_SAID_ANYWAY = {"type", "transport"}


def _broken(error: BaseException) -> bool:
    """Return whether the connection is lost, so that reconnecting may help."""
    names = (
        "ClosedResourceError",
        "BrokenResourceError",
        "ConnectionError",
        "ConnectError",
        "EndOfStream",
        "ReadError",
    )
    return isinstance(error, ConnectionError) or type(error).__name__ in names or "closed" in str(error).lower()
