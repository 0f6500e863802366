"""A chat endpoint on 127.0.0.1 that does what a test tells it to, byte by byte, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

Behaviour = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request, and the means to answer it."""

    def __init__(self, headers: dict[str, str], body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.headers, self.body, self.reader, self.writer = headers, body, reader, writer

    async def send(
        self, content: bytes, status: str = "200 OK", kind: str = "application/json", **headers: str
    ) -> None:
        """A whole answer."""
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(content)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.raw("\r\n".join([*lines, "", ""]).encode() + content)

    async def json(self, data: Any, status: str = "200 OK", **headers: str) -> None:
        await self.send(json.dumps(data).encode(), status, **headers)

    async def chunks(self, parts: list[bytes], *, end: bool = True) -> None:
        """An answer in chunks, a stream of events; without ``end`` it stops in the middle."""
        await self.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in parts:
            await self.raw(b"%x\r\n%s\r\n" % (len(part), part))
            await asyncio.sleep(0)
        await (self.raw(b"0\r\n\r\n") if end else self.hang_up())

    async def raw(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def hang_up(self) -> None:
        self.writer.close()

    async def hang(self) -> None:
        """Say nothing until the other side goes."""
        await self.reader.read()


class ChatServer:
    """``behave`` answers every request; ``requests`` holds their bodies, ``open_now`` counts connections."""

    def __init__(self, behave: Behaviour):
        self.behave = behave
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.open_now = 0

    def __enter__(self) -> ChatServer:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def wait_closed(self) -> None:
        """Until no connection is open; they close a moment after the client lets go."""
        deadline = time.monotonic() + 20
        while self.open_now:
            assert time.monotonic() < deadline, f"{self.open_now} connections are still open"
            time.sleep(0.01)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_now += 1
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:]) if k}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                assert re.fullmatch(r"POST (http://[^/]+)?/v1/chat/completions HTTP/1.1", head[0])  # whole for a proxy
                self.requests.append(body)
                self.headers.append(headers)
                await self.behave(Exchange(headers, body, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open_now -= 1
            writer.close()


def completion(text: str | None = "up", **choice: Any) -> dict[str, Any]:
    """A chat completion as endpoints write it."""
    message = {"role": "assistant", "content": text, **choice.pop("message", {})}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 90, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 40}},
    }


def events(data: dict[str, Any], size: int = 3) -> bytes:
    """The same completion as a stream of events, its text in pieces of ``size`` characters."""
    choice = data["choices"][0]
    message, text = choice["message"], choice["message"]["content"]
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    deltas: list[dict[str, Any]] = [{**others, "content": None if text is None else ""}]
    deltas += [{"content": text[i : i + size]} for i in range(0, len(text or ""), size)]
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        start = {**call, "index": index, "function": {"name": function["name"], "arguments": ""}}
        deltas.append({"tool_calls": [start]})
        for i in range(0, len(function["arguments"]), size):
            deltas.append(
                {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"][i : i + size]}}]}
            )
    parts: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    if "token_ids" in choice:
        parts[0]["prompt_token_ids"] = data["prompt_token_ids"]
        for token, entry in zip(choice["token_ids"], choice["logprobs"]["content"], strict=True):
            more = {"delta": {}, "token_ids": [token], "logprobs": {"content": [entry]}, "finish_reason": None}
            parts.append({"choices": [more]})
    parts += [{"choices": [{"delta": {}, "finish_reason": choice["finish_reason"]}]}]
    parts += [{"choices": [], "usage": data["usage"]}]
    lines = [": a comment", *(f"data: {json.dumps(part, ensure_ascii=False)}" for part in parts), "data: [DONE]", ""]
    return "\n\n".join(lines).encode()
