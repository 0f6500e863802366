"""Small clients of every protocol of `rollenv serve`, over plain sockets that can be cut at any moment."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from rollenv.remote import protocol

#: Begins a session of MCP.
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "soak", "version": "1"}}
ACCEPT = {"Accept": "application/json, text/event-stream"}


class Wire:
    """All connections of one client.

    Args:
        port: of the server, on this machine.
    """

    def __init__(self, port: int):
        self.port, self.transports, self._held = port, list[asyncio.WriteTransport](), False

    async def ask(
        self, path: str, body: object = None, method: str = "POST", headers: Mapping[str, str] = {}
    ) -> tuple[dict[str, str], bytes]:
        """The headers and the body of an answer with a status of 200 or 202.

        Args:
            path: of the request.
            body: JSON; none if it is None.
            method: of HTTP.
            headers: besides the usual ones.
        """
        while self._held:
            await asyncio.sleep(3600)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 27)
        self.transports.append(writer.transport)
        content = b"" if body is None else json.dumps(body).encode()
        told = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": len(content), **headers}
        lines = [f"{method} {path} HTTP/1.0", *(f"{name}: {value}" for name, value in told.items()), "", ""]
        writer.write("\r\n".join(lines).encode() + content)
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        status, *rest = head.decode("latin-1").split("\r\n")
        if status.split(" ")[1:2] not in (["200"], ["202"]):
            raise RuntimeError(f"{path}: {status} {answer[:300]!r}")
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}, answer

    async def json(self, path: str, body: object = None) -> Any:
        """The JSON that answers a POST."""
        return json.loads((await self.ask(path, body))[1])

    async def socket(self, path: str, **how: Any) -> ClientConnection:
        """A WebSocket."""
        url = f"ws://127.0.0.1:{self.port}{path}"
        found = await connect(url, compression=None, max_size=None, ping_interval=None, open_timeout=60, **how)
        self.transports.append(found.transport)
        return found

    def cut(self, reset: bool) -> None:
        """End all connections, without a goodbye of their protocols.

        Args:
            reset: by a reset of TCP, which also drops what is under way.
        """
        for transport in self.transports:
            found = transport.get_extra_info("socket")
            if reset and found is not None and found.fileno() >= 0:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()

    def hold(self) -> None:
        """Read nothing more, whoever asks for it."""
        self._held = True
        for transport in self.transports:
            assert isinstance(transport, asyncio.Transport)
            if not transport.is_closing():
                transport.pause_reading()
                transport.resume_reading = lambda: None  # type: ignore[method-assign]


#: An agent: a function from an observation to an action, or None to stop.
Act = Callable[[str], str | None]
#: Episodes one session.
Play = Callable[[Wire, str, Act], Awaitable[None]]


async def native(wire: Wire, env_id: str, act: Act) -> None:
    """rollenv's own protocol."""
    connection, name, number = await wire.socket(protocol.PATH, subprotocols=[protocol.SUBPROTOCOL]), "", 0

    async def ask(*request: object) -> Any:
        nonlocal number
        number += 1
        await connection.send(protocol.pack([number, *request]))
        answer = protocol.unpack_all(await connection.recv())[0]  # type: ignore[arg-type]
        if len(answer) > 2:
            raise RuntimeError(f"{request}: {answer}")
        return answer[1]

    name = protocol.session_name()
    await ask("open", name, env_id, {})
    seen = (await ask("call", name, 1, "reset", [1]))[0]
    count = 1
    while (action := act(seen)) is not None:
        count += 1
        seen = (await ask("call", name, count, "step", [action]))[0]
    await ask("close", name)
    await connection.close()


async def openenv(wire: Wire, env_id: str, act: Act) -> None:
    """OpenEnv's WebSocket."""
    connection = await wire.socket(f"/openenv/{env_id}/ws")

    async def ask(kind: str, **data: object) -> str:
        await connection.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(await connection.recv())
        if answer["type"] != "observation":
            raise RuntimeError(f"{kind}: {answer}")
        return str(answer["data"]["observation"]["text"])

    seen = await ask("reset", seed=1)
    while (action := act(seen)) is not None:
        seen = await ask("step", action=action)
    await connection.close()


async def gem(wire: Wire, env_id: str, act: Act) -> None:
    """GEM over HTTP."""
    path = "/apis/v1/envs/gem"
    mine = await wire.json(f"{path}/make", {"env_id": env_id})
    seen = (await wire.json(f"{path}/reset", mine | {"seed": 1}))["observation"]
    while (action := act(seen)) is not None:
        seen = (await wire.json(f"{path}/step", mine | {"action": action}))["observation"]
    await wire.json(f"{path}/close", mine)


async def ors(wire: Wire, env_id: str, act: Act) -> None:
    """OpenReward's protocol."""
    _, events = await wire.ask("/create_session", {})
    about = {"X-Session-ID": _data(events, "task_id"), "X-Deployment": env_id}
    await wire.ask("/create", {"split": "test", "index": 1}, headers=about)
    seen = json.loads((await wire.ask("/prompt", None, "GET", about))[1])[0]["text"]
    while (action := act(seen)) is not None:
        _, events = await wire.ask("/call", {"name": "step", "input": {"action": action}}, headers=about)
        seen = json.loads(_data(events, "chunk") + _data(events, "end"))["output"]["blocks"][0]["text"]
    await wire.ask("/delete", {}, headers=about)


async def mcp(wire: Wire, env_id: str, act: Act) -> None:
    """MCP over streamable HTTP."""
    path, numbers = f"/mcp/env/{env_id}", itertools.count(1)

    def request(method: str, **params: object) -> dict[str, object]:
        return {"jsonrpc": "2.0", "id": next(numbers), "method": method, "params": params}

    told, _ = await wire.ask(path, request("initialize", **HELLO), headers=ACCEPT)
    about = ACCEPT | {"Mcp-Session-Id": told["mcp-session-id"]}

    async def call(name: str, **arguments: object) -> str:
        _, events = await wire.ask(path, request("tools/call", name=name, arguments=arguments), headers=about)
        result = json.loads(_data(events, "message"))["result"]
        if result.get("isError"):
            raise RuntimeError(f"{name}: {result}")
        return str(result["structuredContent"]["observation"])

    await wire.ask(path, {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=about)
    seen = await call("reset", seed=1)
    while (action := act(seen)) is not None:
        seen = await call("step", action=action)
    await wire.ask(path, None, "DELETE", about)


def _data(events: bytes, kind: str) -> str:
    """The data of all events of a kind in a stream."""
    told = [event.split("\n") for event in events.decode().replace("\r\n", "\n").split("\n\n")]
    return "".join(line[6:] for lines in told if f"event: {kind}" in lines for line in lines if line[:6] == "data: ")


PLAYS: dict[str, Play] = {"native": native, "openenv": openenv, "gem": gem, "ors": ors, "mcp": mcp}
