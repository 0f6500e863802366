"""Clients that stop to read, and servers that stand still."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket

import pytest
from serving import patient
from waiting import eventually

import rollenv
from rollenv.remote.address import parse
from rollenv.remote.connection import Connection
from rollenv.remote.protocol import ServerLost

#: An answer that is larger than the buffers of the kernel.
MUCH = {"action": "huge 15000000"}


def files(served):
    """How many files and sockets the server process has open."""
    return len(os.listdir(f"/proc/{served.process.pid}/fd"))


def over_http(served, plain):
    gem = "/apis/v1/envs/gem"
    mine = patient.post(f"{served.http}{gem}/make", json={"env_id": "test:Moody-v0"}, timeout=60).json()
    assert patient.post(f"{served.http}{gem}/reset", json=mine, timeout=60).status_code == 200
    body = json.dumps(mine | MUCH)
    head = f"POST {gem}/step HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    plain.sendall((head + body).encode())


def over_a_websocket(served, plain):
    key = base64.b64encode(bytes(16)).decode()
    head = ["GET /openenv/test:Moody-v0/ws HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket"]
    head += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", "", ""]
    plain.sendall("\r\n".join(head).encode())
    for request in ({"type": "reset"}, {"type": "step", "data": MUCH}):
        data = json.dumps(request).encode()
        plain.sendall(bytes([0x81, 0x80 | len(data), 0, 0, 0, 0]) + data)


@pytest.mark.integration
@pytest.mark.parametrize("ask", [over_http, over_a_websocket], ids=["http", "websocket"])
def test_answers_that_nobody_reads_are_given_up(serve, ask):
    served = serve("--silence", "2", workers=1)
    rollenv.make(f"{served.address}/test:Moody-v0").reset(1)  # what is made when it is first needed is there
    with socket.create_connection(("127.0.0.1", served.port)) as plain:
        plain.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        told = b""
        while not told.endswith(b"alive\n"):
            told += plain.recv(1000)
        before = files(served)
        ask(served, plain)
        assert plain.recv(100), "an answer began"
        assert eventually(lambda: files(served) < before), "the socket was closed, and its answer dropped"


@pytest.mark.integration
def test_a_server_that_stands_still_is_lost_and_one_that_computes_is_not(serve):
    served = serve(workers=1)
    name, connection = "n" * 20, Connection(parse(served.address)[0][0], patience=0.0, silence=0.3)
    connection.ask("open", name, "test:Moody-v0", {})
    connection.ask("call", name, 1, "reset", [1])
    assert connection.ask("call", name, 2, "step", ["hang 2"])[0] == "turn 1"
    served.signal(signal.SIGSTOP)
    with pytest.raises(ServerLost):
        connection.ask("call", name, 3, "step", ["x"])
    assert connection.recently_lost
    served.signal(signal.SIGCONT)
    assert connection.ask("call", name, 3, "step", ["x"])[0] == "turn 2", "it is as good as before"
    assert not connection.recently_lost
    connection.close()


@pytest.mark.integration
def test_a_client_that_waits_for_an_answer_is_not_silent(serve):
    served = serve("--silence", "3", workers=1)
    name, connection = "n" * 20, Connection(parse(served.address)[0][0], patience=0.0)
    connection.ask("open", name, "test:Moody-v0", {})
    connection.ask("call", name, 1, "reset", [1])
    assert connection.ask("call", name, 2, "step", ["hang 7"])[0] == "turn 1"
    connection.close()
