"""Who may use a server: tokens, names, pages of other sites, sizes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time

import pytest
from serving import patient
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import rollenv
from rollenv.core.errors import UsageError
from rollenv.remote import protocol
from rollenv.remote.protocol import NotAllowed
from rollenv.serve.auth import TokenTable, new_token


def test_tokens_are_needed_and_belong_to_clients(guarded, monkeypatch):
    served, token = guarded
    env_id = f"{served.address}/test:Echo-v0"
    for wrong, why in (("", "token is needed"), ("x", "token is wrong"), (token["ann"][:-1], "wrong")):
        monkeypatch.setenv("ROLLENV_TOKEN", wrong)
        with pytest.raises(NotAllowed, match=why):
            rollenv.make(env_id)
        headers = {"Authorization": f"Bearer {wrong}"} if wrong else {}
        answer = patient.post(f"{served.http}/apis/v1/envs/gem/make", json={"env_id": "test:Echo-v0"}, headers=headers)
        assert answer.status_code == 401
    monkeypatch.setenv("ROLLENV_TOKEN", token["bob"])
    with pytest.raises(NotAllowed, match="environments"):
        rollenv.make(env_id)
    for password, status in ((token["ann"], 200), ("x", 401), ("", 401)):  # of clients that can only write addresses
        url = served.http.replace("//", f"//any:{password}@")
        assert patient.post(f"{url}/apis/v1/envs/gem/list").status_code == status
    for broken in ("Basic", "Basic \u00e9", "Basic !!!", "Basic //79", "Basic YW5u"):
        answer = patient.post(
            f"{served.http}/apis/v1/envs/gem/list", headers={"Authorization": broken.encode("latin-1")}
        )
        assert answer.status_code == 401


def test_a_session_is_its_owners(guarded):
    served, token = guarded

    def post(who, what, **body):
        headers = {"Authorization": f"Bearer {token[who]}"}
        return patient.post(f"{served.http}/apis/v1/envs/gem/{what}", json=body, headers=headers)

    name = post("ann", "make", env_id="test:Echo-v0").json()["sandbox_id"]
    assert post("eve", "reset", sandbox_id=name, seed=1).status_code == 404
    assert post("ann", "reset", sandbox_id=name, seed=1).status_code == 200


def test_a_file_of_tokens_holds_no_token(tmp_path):
    token, lines = new_token("ann", ["environments"])
    file = tmp_path / "tokens.toml"
    file.write_text(lines)
    assert token not in lines
    assert TokenTable.read(file).client(f"Bearer {token}").name == "ann"
    broken = ["[a]\nhash = 'x'\nscopes = ['admin']", "[a]\nhash=1\nscopes=['admin']", "[a]\nscopes = []", "nonsense"]
    for text in broken:
        file.write_text(text)
        with pytest.raises(UsageError, match="tokens"):
            TokenTable.read(file)


@pytest.mark.integration
def test_the_command_makes_tokens_and_needs_them_for_other_machines():
    def run(*args):
        code = "from rollenv.cli.main import main; main()"
        return subprocess.run([sys.executable, "-c", code, "serve", *args], capture_output=True, text=True, timeout=60)

    made = run("--new-token", "ann", "--scopes", "environments,sandboxes")
    assert made.returncode == 0
    token = made.stderr.split()[-1]
    assert token.startswith("rollenv_")
    assert token not in made.stdout
    assert run("--new-token", "an n").returncode == 2
    assert run("--new-token", "ann", "--scopes", "everything").returncode == 2
    refused = run("--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    assert "needs tokens" in refused.stderr


def test_bodies_and_messages_that_are_too_large(shared_server):
    with socket.create_connection(("127.0.0.1", shared_server.port)) as plain:
        plain.sendall(
            f"POST /apis/v1/envs/gem/make HTTP/1.1\r\nHost: localhost\r\nContent-Length: {1 << 40}\r\n\r\n".encode()
        )
        assert b" 413 " in plain.recv(1000)
    with connect(f"ws://127.0.0.1:{shared_server.port}{protocol.PATH}", max_size=None) as socket_:
        with contextlib.suppress(ConnectionClosed):
            socket_.send(b"x" * (protocol.LARGEST_MESSAGE + 10))
        with pytest.raises(ConnectionClosed):
            socket_.recv()
    assert patient.get(shared_server.http + "/livez").status_code == 200


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"\x00" * 100, b"\x91\x01", b"\x92\xa1x\xa1y", b"\xdd\xff\xff\xff\xff", b"\x91" * 5000, "text"],
    ids=repr,
)
def test_messages_that_are_no_requests_end_the_connection_alone(shared_server, data):
    with connect(f"ws://127.0.0.1:{shared_server.port}{protocol.PATH}") as socket_:
        socket_.send(data)
        with pytest.raises(ConnectionClosed) as caught:
            socket_.recv(10)
        assert caught.value.rcvd.code == 1007
    assert patient.get(shared_server.http + "/livez").status_code == 200


def test_requests_that_make_no_sense_are_answered(shared_server):
    requests = [
        ["nothing"], [None], [["a"]], ["open"], ["open", 1, 2, 3], ["open", "n" * 20, "test:Echo-v0", {"x": 1}],
        ["open", "short", "test:Echo-v0", {}], ["call", "n" * 20, 1, "step", ["x"]], ["spec", "rollenv+ws://localhost/x"],
        ["open", "n" * 20, "rollenv+ws://localhost:1/x", {}], ["open", "n" * 20, "no:Such-v0", {}], ["call"] * 9,
        ["open", "n" * 20, "test:Echo-v0", {"kwargs": 3}], ["open", "n" * 20, "test:Echo-v0", {"wrappers": [1]}],
    ]  # fmt: skip
    with connect(f"ws://127.0.0.1:{shared_server.port}{protocol.PATH}") as socket_:
        for number, request in enumerate(requests):
            socket_.send(protocol.pack([number, *request]))
            (answer,) = protocol.unpack_all(socket_.recv(10))
            assert answer[0] == number
            assert answer[2] in protocol.KINDS
            assert answer[2] != "server"
        name = protocol.session_name()
        socket_.send(protocol.pack([50, "open", name, "test:Echo-v0", {}]))
        socket_.recv(20)
        calls = [["_step", []], ["close", []], ["__class__", []], ["step", []], ["step", [5]], ["reset", [1, 2, 3]]]
        calls += [["reset", [True]], ["reset", [-1]], ["set_state", [[]]], ["set_state", [{}]], ["step", ["too early"]]]
        for number, (method, args) in enumerate(calls, 1):
            socket_.send(protocol.pack([100 + number, "call", name, number, method, args]))
            (answer,) = protocol.unpack_all(socket_.recv(20))
            assert answer[0] == 100 + number
            assert answer[2] in protocol.KINDS, answer
        socket_.send(protocol.pack([200, "call", name, 40, "reset", [1]]))
        assert protocol.unpack_all(socket_.recv(20))[0][2] == "usage"
        socket_.send(protocol.pack([201, "call", name, len(calls) + 1, "reset", [1]]))
        assert len(protocol.unpack_all(socket_.recv(20))[0]) == 2, "the session is as good as new"


@pytest.mark.integration
def test_connections_that_say_nothing_end(serve):
    served = serve("--silence", "1")
    with connect(f"ws://127.0.0.1:{served.port}{protocol.PATH}") as quiet, pytest.raises(ConnectionClosed):
        quiet.recv(10)
    with socket.create_connection(("127.0.0.1", served.port)) as slow:  # a header that never ends
        slow.settimeout(20)
        started = time.monotonic()
        try:
            slow.sendall(b"GET /livez HTTP/1.1\r\n")
            while time.monotonic() - started < 15:
                slow.sendall(b"X")
                time.sleep(0.2)
            raise AssertionError("the server let it go on")
        except OSError:
            pass


def test_a_body_that_is_not_http_is_no_error_of_the_server(serve, tmp_path):
    with open(tmp_path / "log", "w") as log:
        served = serve(workers=1, stderr=log)
    head = b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    for answered, status in ((False, b"400"), (True, b"404")):
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as bad:
            bad.sendall(head if answered else head + b"zz\r\n")
            answer = bad.recv(9999)
            if answered:
                bad.sendall(b"zz\r\n")
            with contextlib.suppress(ConnectionResetError):  # what it does not read
                while bad.recv(9999):
                    pass
        assert answer.startswith(b"HTTP/1.1 " + status)
    assert patient.get(f"{served.http}/livez").status_code == 200
    assert "Traceback" not in (tmp_path / "log").read_text()
