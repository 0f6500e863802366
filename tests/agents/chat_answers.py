"""Answers of a chat endpoint, good ones and all those that pass, and agents that are asked once."""

from __future__ import annotations

import asyncio
import json
from functools import partial

from chat_server import completion, events

from rollenv.agents.chat.endpoint import Patience

SOON = Patience(timeout=60, retries=2, first_wait=0.001, limited=1.0)


def ask(agent, says=(("go", {}),), seed=0):
    """An episode against fixed observations."""

    async def play():
        async with agent:
            session = agent.start(None, seed)
            actions = [await session.act(*said) for said in says]
            session.close()
            return actions

    return asyncio.run(play())


async def good(exchange):
    await exchange.json(completion("up"))


async def cut_body(exchange):
    await exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{")
    await exchange.hang_up()


def cut_stream(exchange, *, end=False):
    return exchange.chunks([events(completion("a longer answer"))[:300]], end=end)


def answer(data=None, status="200 OK", content=None, kind="application/json", **headers):
    async def behave(exchange):
        await exchange.send(json.dumps(data).encode() if content is None else content, status, kind, **headers)

    return behave


def stream(*parts):
    async def behave(exchange):
        await exchange.chunks([b"data: " + part + b"\n\n" for part in parts])

    return behave


HTML = b"<html>Bad gateway, but with status 200</html>"
PASSING = {
    "500": (answer({"error": "boom"}, "500 Internal Server Error"), "500 Internal Server Error: boom"),
    "503 without text": (answer(content=b"", status="503 Service Unavailable"), "503 Service Unavailable: no text"),
    "half a JSON": (answer(content=json.dumps(completion()).encode()[:60]), "is not JSON or was cut: 60 bytes"),
    "an empty body": (answer(content=b""), "is not JSON or was cut: 0 bytes"),
    "deep JSON": (answer(content=b"[" * 100_000), "is not JSON"),
    "wrong content type": (answer(content=HTML, kind="text/html"), r"\(text/html\) is not JSON .*Bad gateway"),
    "not an object": (answer([1, 2]), "no choices"),
    "null": (answer(None), "no choices"),
    "choices of another kind": (answer({"choices": {"0": "up"}}), "no choices"),
    "an error with status 200": (answer({"error": {"message": "lost upstream"}}), "lost upstream"),
    "no message": (answer({"choices": [{"text": "up"}]}), "no message"),
    "null content": (answer(completion(None)), "no content .*'stop'"),
    "an answer that was aborted": (answer(completion("First, I", finish_reason="abort")), "finish_reason is 'abort'"),
    "a tool without a name": (answer(completion(None, message={"tool_calls": [{"id": 1}]})), "without a name"),
    "closed socket": (lambda exchange: exchange.hang_up(), "RemoteProtocolError"),
    "closed in the middle": (cut_body, "RemoteProtocolError"),
    "not HTTP": (lambda exchange: exchange.raw(b"SSH-2.0-OpenSSH\r\n\r\n"), "RemoteProtocolError"),
    "broken compression": (answer(content=b"junk", Content_Encoding="gzip"), "DecodingError"),
    "a stream cut in the middle": (cut_stream, "RemoteProtocolError"),
    "a stream that ends early": (partial(cut_stream, end=True), "is not JSON or was cut|cut before"),
    "a stream without an end": (stream(b'{"choices": [{"delta": {"content": "u"}}]}'), "cut before the answer's end"),
    "a stream of nonsense": (stream(b"{{"), "text/event-stream. is not JSON"),
    "a stream without content": (
        stream(b'{"choices": [{"delta": {"role": "assistant"}, "finish_reason": "stop"}]}', b"[DONE]"),
        "no content",
    ),
}
