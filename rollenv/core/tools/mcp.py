"""The tools of Model Context Protocol servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.core.errors import MissingExtra, RollenvError, UsageError, reads
from rollenv.core.needs import extra
from rollenv.core.pictures import Picture, picture
from rollenv.core.proxies import without_proxy
from rollenv.core.tools.call_readers import ToolCall
from rollenv.core.tools.calls import unknown_argument
from rollenv.core.tools.function import CallableTool, CallResult, shown_result, text_of

#: Maximum seconds for the start of a server.
_START = 30.0
#: Maximum seconds between two parts of an answer, while the call's own limit holds.
_LONGEST_SILENCE = 300.0


class MCPError(RollenvError):
    """An MCP server cannot be reached, or closed the connection."""


class MCPTool(CallableTool):
    """Lets an agent call the tools of one or more MCP servers. One object may serve many threads.

    One session to each server stays open, in its own thread, and is opened again if the server forgot it. With several
    servers, tools whose names collide are called ``SERVER_TOOL``.

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
        self._sessions: dict[str, _Session] = {}
        self._listed: dict[str, list[Any]] = {}
        self._tools: dict[str, tuple[str, Any]] = {}
        if validate_on_init:
            try:
                self._connect()
            except RollenvError:
                self.close()
                raise

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
            session = None
            try:
                if call.name not in self._tools:
                    self._connect()
                server, tool = self._tools[call.name]
                if wrong := unknown_argument(call, tool.input_schema):
                    return True, f"The call of {call.name} failed: {wrong}."
                session = self._session(server)
                result = session.call(tool.name, call.arguments)
            except TimeoutError:
                return True, f"The call of {call.name} failed: it took longer than {self.execution_timeout:g} s."
            except (MissingExtra, UsageError):  # for the user to fix, not the agent
                raise
            except Exception as error:
                if session is not None:
                    session.lost = session.lost or _broken(error)
                    if session.lost and attempt < self.max_retries:
                        continue
                return True, f"The call of {call.name} failed: {str(error)[:1000]}"
            return CallResult(bool(result.is_error), *_shown(result))
        raise AssertionError("the last attempt returns")

    def close(self) -> None:
        with self._lock:
            sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.close()

    def _connect(self) -> None:
        for name in self._servers:
            self._session(name)

    def _session(self, name: str) -> _Session:
        """Return the session to a server; open it if there is none, or if it was lost."""
        with self._lock:
            session = self._sessions.get(name)
            if session is not None and not session.lost:
                return session
            if session is not None:
                del self._sessions[name]
                session.close()
            try:
                self._sessions[name] = session = _Session(self._servers[name], self.execution_timeout)
            except MissingExtra:
                raise
            except BaseException as error:
                root = error
                while isinstance(root, BaseExceptionGroup):
                    root = root.exceptions[0]
                raise MCPError(f"cannot reach the MCP server {name}: {type(root).__name__}: {root}") from error
            self._listed[name] = session.tools
            counts = Counter(tool.name for tools in self._listed.values() for tool in tools)
            self._tools = {
                tool.name if counts[tool.name] == 1 else f"{server}_{tool.name}": (server, tool)
                for server, tools in self._listed.items()
                for tool in tools
            }
            return session


class _Session:
    """An open session to a server, in a thread of its own.

    Attributes:
        lost: whether the server does not know it any more, or the connection broke.
    """

    def __init__(self, server: Mapping[str, Any], timeout: float):
        self._server, self._timeout = server, timeout
        self.lost = False
        self.tools: list[Any] = []
        self._error: BaseException | None = None
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="mcp", daemon=True)
        self._thread.start()
        self._up.wait()
        if self._error is not None:
            raise self._error

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        work = self._client.call_tool(name, arguments)
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:
            work.close()
            raise ConnectionError("the session is closed") from error
        try:
            return future.result(self._timeout)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _serve(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._error, self.lost = error, True
        finally:
            self._up.set()

    async def _run(self) -> None:
        with extra("tools", "Calling MCP tools"):
            import httpx2
            from mcp import Client, StdioServerParameters
            from mcp.client.streamable_http import streamable_http_client
        server = self._server
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            if "command" in server:
                target: Any = StdioServerParameters(**server)
            else:
                http = httpx2.AsyncClient(
                    headers=server.get("headers"),
                    timeout=httpx2.Timeout(self._timeout, read=max(self._timeout, _LONGEST_SILENCE)),
                    event_hooks={"response": [self._watch]},
                    mounts=without_proxy(server["url"]),
                )
                await stack.enter_async_context(http)
                target = streamable_http_client(server["url"], http_client=http)
            async with asyncio.timeout(max(self._timeout, _START)):
                self._client = await stack.enter_async_context(Client(target))
                cursor, cursors, tools = None, set[str | None](), dict[str, Any]()
                while cursor not in cursors:  # None, at the end, or one that a careless server repeats
                    cursors.add(cursor)
                    page = await self._client.list_tools(cursor=cursor)
                    tools |= {tool.name: tool for tool in page.tools}
                    cursor = page.next_cursor
            self.tools = list(tools.values())
            self._up.set()
            await self._stop.wait()

    async def _watch(self, response: Any) -> None:
        """Notice that the server forgot the session: 404 by the protocol, 400 in older servers."""
        if response.request.method == "POST" and "mcp-session-id" in response.request.headers:
            forgotten = response.status_code == 404
            if response.status_code == 400:
                forgotten = b"session" in (await response.aread()).lower()
            self.lost = self.lost or forgotten


def _shown(result: Any) -> tuple[str, list[Picture]]:
    """Return all that a call gave: text with bound marks, and pictures; structured data only if no text repeats it."""
    texts = [part.text for part in result.content if part.type == "text"]
    structured, shown = result.structured_content, [_part(part) for part in result.content]
    values = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:  # so Python's SDK wraps what is no object
        values.append(structured["result"])
    elif isinstance(structured, dict):
        parts = [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in result.content]
        structured = {name: value for name, value in structured.items() if value not in [*texts, parts]} or None
    if structured is not None and not any(_repeats(texts, value) for value in values):
        shown.append(json.dumps(structured, ensure_ascii=False))
    if any(isinstance(part, Picture) for part in shown):
        return shown_result(shown)
    return text_of("\n".join(map(str, shown))), []


def _repeats(texts: Sequence[str], value: Any) -> bool:
    """Return whether one text is the value, or each text is one of its items."""

    def same(text: str, value: Any) -> bool:
        with contextlib.suppress(ValueError, RecursionError):
            return text == value or bool(json.loads(text) == value)
        return False

    if isinstance(value, list) and len(value) == len(texts) > 0 and all(map(same, texts, value)):
        return True
    return any(same(text, value) for text in texts)


def _part(part: Any) -> str | Picture:
    """Return a part of a result as text or picture; data of sounds, files and pictures of other kinds is left out."""
    if part.type == "text":
        return str(part.text)
    if part.type == "image":
        with contextlib.suppress(UsageError):
            return picture(f"data:image/png;base64,{part.data}")
    source = part.resource if part.type == "resource" else part
    about = [getattr(source, key, None) for key in ("uri", "name", "description", "mime_type")]
    head = " ".join([part.type, *(value for value in about if value)])
    return "\n".join([f"[{head}]", *filter(None, [getattr(source, "text", "")])])


def _servers(config: str | Path | Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    if isinstance(config, str) and config.startswith(("http://", "https://")):
        return {"server": {"url": config}}
    if isinstance(config, str | Path):
        with reads(f"cannot read the MCP configuration {str(config)!r}"):
            config = json.loads(Path(config).read_text(encoding="utf-8"))
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
