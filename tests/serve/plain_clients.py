"""Clients that write the bytes of a protocol themselves, and servers that lie to clients."""

from __future__ import annotations

import contextlib
import json
import threading

import httpx
from serving import patient
from websockets.sync.client import connect
from websockets.sync.server import serve as serve_websocket

from rollenv.remote import protocol

ACCEPT = {"Accept": "application/json, text/event-stream"}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class McpSession:
    """An MCP session over plain HTTP."""

    def __init__(self, http, path="/mcp", token=None):
        headers = ACCEPT | ({"Authorization": f"Bearer {token}"} if token else {})
        self.http = httpx.Client(base_url=http, headers=headers, timeout=60)
        self.path, self.number = path, 0
        self.hello = self.post("initialize", HELLO)
        if self.hello.status_code == 200:
            self.http.headers["Mcp-Session-Id"] = self.hello.headers["mcp-session-id"]
            assert self.post("notifications/initialized", number=None).status_code == 202

    def post(self, method, params=None, number=0, **headers):
        self.number += 1
        body = {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})
        body |= {} if number is None else {"id": number or self.number}
        return self.http.post(self.path, json=body, headers=headers)

    def ask(self, method, params=None):
        answer = self.post(method, params)
        assert answer.status_code == 200, answer.text
        data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        return json.loads(data[-1])

    def call(self, name, **arguments):
        result = self.ask("tools/call", {"name": name, "arguments": arguments})["result"]
        if result.get("isError"):
            raise ToolError(result["content"][0]["text"])
        return result["structuredContent"]

    def end(self):
        return self.http.delete(self.path)


class ToolError(Exception):
    pass


class Raw:
    """A connection of the native protocol."""

    def __init__(self, server):
        self.socket = connect(
            f"ws://127.0.0.1:{server.port}{protocol.PATH}", max_size=None, open_timeout=20
        ).__enter__()
        self.number = 0

    def send(self, *requests):
        """Send requests in one message."""
        numbers = range(self.number + 1, self.number + 1 + len(requests))
        self.number += len(requests)
        messages = [protocol.pack([n, *r]) for n, r in zip(numbers, requests, strict=True)]
        self.socket.send(next(protocol.pack_all(messages, 1 << 30))[1])
        return list(numbers)

    def ask(self, *request, seconds=30):
        """The answer to a request."""
        (number,) = self.send(request)
        return self.answer(number, seconds)

    def answer(self, number, seconds=30):
        while True:
            for answer in protocol.unpack_all(self.socket.recv(seconds)):
                if answer[0] == number:
                    return answer

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.socket.close()


def plain(value):
    """What is left of a value after a journey: tuples are lists."""
    if isinstance(value, tuple):
        return tuple(map(plain, value)) if len(value) == 2 else [plain(each) for each in value]
    return value


def health(server):
    return patient.get(f"{server.http}/health").json()


@contextlib.contextmanager
def talking(talk):
    """A server that deals with each connection as ``talk`` does."""
    with serve_websocket(talk, "127.0.0.1", 0, subprotocols=[protocol.SUBPROTOCOL], max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join(10)


def liar(answer):
    """A server that answers each request with ``answer(number, operation)``."""

    def talk(connection):
        for message in connection:
            for number, operation, *_ in protocol.unpack_all(message):
                connection.send(answer(number, operation))

    return talking(talk)


def honest(number, operation):
    return protocol.pack([number, {"version": protocol.VERSION}])
