"""E2B's protocol, byte by byte, and its own client in sessions of its own (e2b_session.py)."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from clients import run
from serving import patient, tokens_in
from websockets.exceptions import ConnectionClosedOK, InvalidStatus
from websockets.sync.client import connect

HERE = Path(__file__).parent
STREAM = {"Content-Type": "application/connect+json"}


class Client:
    """Requests to a server, and to one sandbox of it."""

    def __init__(self, server, **headers):
        self.http = httpx.Client(base_url=f"{server.http}/e2b", timeout=60, headers=headers)
        self.port = server.port

    def make(self, **body):
        made = self.http.post("/v2/sandboxes", json={"templateID": "base", "timeout": 120, **body})
        assert made.status_code == 201, made.text
        self.told = made.json()
        self.http.headers["E2b-Sandbox-Id"] = self.told["sandboxID"]
        return self

    def execute(self, code, **body):
        answer = self.http.post("/execute", json={"code": code, **body})
        assert answer.status_code == 200, answer.text
        events = [json.loads(line) for line in answer.text.splitlines()]
        return [event for event in events if event["type"] != "keepalive"]

    def call(self, method, headers=None, **message):
        """A method with one answer; its status and the answer."""
        answer = self.http.post(f"/{method}", json=message, headers=headers)
        return answer.status_code, answer.json()

    def stream(self, method, *messages, **headers):
        """The messages of an answer, and the last one."""
        body = b"".join(map(envelope, messages))
        answer = self.http.post(f"/{method}", content=body, headers=STREAM | headers)
        assert answer.status_code == 200, answer.text
        *events, (flags, last) = opened(answer.content)
        assert flags == 2
        assert all(flag == 0 for flag, _ in events)
        return [event for _, event in events], last

    def leave(self, path, body, after=0.5):
        """Send a request and go before its answer is whole."""
        data = json.dumps(body).encode()
        head = f"POST /e2b{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nE2b-Sandbox-Id: {self.told['sandboxID']}\r\n"
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            time.sleep(after)


def envelope(message):
    data = json.dumps(message).encode()
    return b"\0" + len(data).to_bytes(4, "big") + data


def opened(data):
    found = []
    while data:
        size = int.from_bytes(data[1:5], "big")
        found.append((data[0], json.loads(data[5 : 5 + size])))
        data = data[5 + size :]
    return found


@pytest.fixture
def box(server):
    client = Client(server).make()
    yield client
    client.http.delete(f"/sandboxes/{client.told['sandboxID']}")


def test_cells(box):
    events = box.execute("import sys\nprint('a')\nprint('b', file=sys.stderr)\n5")
    assert {event["type"]: event.get("text") for event in events} == {
        "stdout": "a\n",
        "stderr": "b\n",
        "result": "5",
        "number_of_executions": None,
        "end_of_execution": None,
    }
    assert events[-2]["execution_count"] == 1
    error, *_ = box.execute("1/0")
    assert (error["type"], error["name"]) == ("error", "ZeroDivisionError")
    assert box.execute("print('\\u2028\\udcff', end='')")[-1]["type"] == "end_of_execution"
    with ThreadPoolExecutor(20) as threads:  # cells wait for each other
        found = list(threads.map(lambda n: box.execute(f"{n}")[0]["text"], range(20)))
    assert found == [str(n) for n in range(20)]


@pytest.mark.integration
def test_code_of_a_client_that_leaves_is_stopped(box):
    box.execute("x = 1")
    for _ in range(5):
        box.leave("/execute", {"code": "import time; time.sleep(100_000)"}, after=0.1)
    assert box.execute("x")[0]["text"] == "1"
    stubborn = "import time\nwhile True:\n  try: time.sleep(1)\n  except BaseException: pass"
    box.leave("/execute", {"code": stubborn})
    assert box.execute("x")[0]["name"] == "NameError", "its context was restarted"


def test_processes(box):
    wanted = {"cmd": "/bin/sh", "args": ["-c", "echo $A; cat; exit 3"], "envs": {"A": "b"}}
    (start, data, end), last = box.stream("process.Process/Start", {"process": wanted, "stdin": False})
    assert start["event"]["start"]["pid"] > 0
    assert base64.b64decode(data["event"]["data"]["stdout"]) == b"b\n"
    status = "exit status 3"
    assert end["event"]["end"] == {"exitCode": 3, "exited": True, "status": status, "error": status}
    assert last == {}
    _, last = box.stream("process.Process/Start", {"process": {"cmd": "/none"}})
    assert last["error"]["code"] == "not_found"
    sleep = {"process": {"cmd": "/bin/sleep", "args": ["30"]}, "tag": "z"}
    _, last = box.stream("process.Process/Start", sleep, **{"Connect-Timeout-Ms": "500"})
    assert last["error"]["code"] == "deadline_exceeded"
    with box.http.stream(
        "POST", "/process.Process/Start", content=envelope(sleep), headers=STREAM | {"Keepalive-Ping-Interval": "1"}
    ) as answer:
        pieces = answer.iter_bytes()
        pid = opened(next(pieces))[0][1]["event"]["start"]["pid"]
        assert opened(next(pieces))[0][1] == {"event": {"keepalive": {}}}
        _, listed = box.call("process.Process/List")
        assert [(one["pid"], one["tag"]) for one in listed["processes"]] == [(pid, "z")]
        code, _ = box.call("process.Process/SendSignal", process={"tag": "z"}, signal="SIGNAL_SIGTERM")
        assert code == 200
        last = opened(b"".join(pieces))
    assert [told for _, told in last][-2]["event"]["end"]["status"] == "signal: terminated"


@pytest.mark.integration
def test_input_that_is_not_read_leaves_room_for_other_calls(box):
    with box.http.stream(
        "POST",
        "/process.Process/Start",
        content=envelope({"process": {"cmd": "/bin/sleep", "args": ["60"]}}),
        headers=STREAM,
    ) as answer:
        pid = opened(next(answer.iter_bytes()))[0][1]["event"]["start"]["pid"]
        message = {"process": {"pid": pid}, "input": {"stdin": base64.b64encode(b"x" * (2 << 20)).decode()}}

        def push(_):
            return box.call("process.Process/SendInput", {"Connect-Timeout-Ms": "500"}, **message)

        with ThreadPoolExecutor(12) as threads:
            assert {code for code, _ in threads.map(push, range(12))} == {504}
        assert box.call("filesystem.Filesystem/Stat", path="/")[0] == 200
        assert box.call("process.Process/SendSignal", process={"pid": pid}, signal="SIGNAL_SIGKILL")[0] == 200


def test_processes_watches_and_requests_are_counted(box):
    def start(_):
        wanted = {"process": {"cmd": "/bin/sleep", "args": ["60"]}, "stdin": False}
        with box.http.stream("POST", "/process.Process/Start", content=envelope(wanted), headers=STREAM) as answer:
            return opened(next(answer.iter_bytes()))[0][1]

    with ThreadPoolExecutor(16) as threads:
        told = [json.dumps(one) for one in threads.map(start, range(80))]
    assert 60 <= sum("pid" in one for one in told) <= 72, "they go on when their client goes"
    codes = [box.call("filesystem.Filesystem/CreateWatcher", path=".")[0] for _ in range(20)]
    assert codes.count(200) <= 16
    assert set(codes) <= {200, 400, 429}


@pytest.mark.integration
def test_files(box):
    http = box.http
    octets = {"Content-Type": "application/octet-stream"}
    assert http.post("/files", params={"path": "a/b"}, content=b"\0\xff", headers=octets).json() == [
        {"name": "b", "type": "file", "path": "/home/user/a/b"}
    ]
    assert http.get("/files", params={"path": "~/a/b"}).content == b"\0\xff"
    form = [("file", ("x/ü", b"1")), ("file", ("/tmp/y", b"2"))]
    assert [one["path"] for one in http.post("/files", files=form).json()] == ["/home/user/x/ü", "/tmp/y"]
    nameless = [("file", (None, b"\xe2\xff\0"))]
    assert http.post("/files", params={"path": "n"}, files=nameless).json()[0]["path"] == "/home/user/n"
    assert http.get("/files", params={"path": "n"}).content == b"\xe2\xff\0"
    assert http.post("/files", files=nameless).status_code == 400
    bomb = gzip.compress(bytes(200 << 20))
    packed = octets | {"Content-Encoding": "gzip"}
    assert http.post("/files", params={"path": "z"}, content=bomb, headers=packed).status_code == 507
    assert http.post("/files", params={"path": "z"}, content=b"x", headers=packed).status_code == 400
    assert http.post("/files", params={"path": "z"}, content=b"x" * (70 << 20), headers=octets).status_code == 413
    for path in ("none", "/proc/none", "x/../../../none"):
        assert http.get("/files", params={"path": path}).status_code == 404
    for path in ("", "x", "\0", "/proc/self/environ", "y" * 5000):
        assert http.get("/files", params={"path": path}).status_code == 400
    assert http.post("/files", params={"path": "/etc/x"}, content=b"x", headers=octets).status_code == 400
    assert http.post("/files", params={"path": "q"}, files=form).status_code == 400
    assert http.post("/files", content=b"x").status_code == 400
    assert http.post("/files", content=b"--", headers={"Content-Type": "multipart/form-data"}).status_code == 400


@pytest.mark.integration
def test_downloads_that_are_left_make_room_for_others(box):
    octets = {"Content-Type": "application/octet-stream"}
    box.http.post("/files", params={"path": "big"}, content=bytes(30 << 20), headers=octets)
    for _ in range(12):
        with box.http.stream("GET", "/files", params={"path": "big"}) as answer:
            assert next(answer.iter_bytes())
    assert len(box.http.get("/files", params={"path": "big"}).content) == 30 << 20


def test_links_are_what_they_lead_to(box):
    box.execute("import os; os.makedirs('a/b'); open('a/c', 'w'); os.symlink('b', 'a/dir'); os.symlink('c', 'a/link')")
    box.execute("os.symlink('a/link', 'twice'); os.symlink('none', 'broken'); os.symlink('round', 'round')")
    home, seen = "/home/user", {}
    for path in ("a/dir", "twice", "broken", "round"):
        entry = box.call("filesystem.Filesystem/Stat", path=path)[1]["entry"]
        seen[path] = entry["type"].removeprefix("FILE_TYPE_"), entry["symlinkTarget"]
    assert seen == {
        "a/dir": ("DIRECTORY", f"{home}/a/b"),
        "twice": ("FILE", f"{home}/a/c"),
        "broken": ("SYMLINK", f"{home}/broken"),
        "round": ("SYMLINK", f"{home}/round"),
    }
    listed = box.call("filesystem.Filesystem/ListDir", path="a")[1]["entries"]
    assert {one["name"]: one["type"] for one in listed if "symlinkTarget" in one} == {
        "dir": "FILE_TYPE_DIRECTORY",
        "link": "FILE_TYPE_FILE",
    }


def test_outputs_keep_their_bytes(box):
    command = {"cmd": "/bin/sh", "args": ["-c", "printf 'a\\342\\377b'; printf '\\200' >&2"]}
    events, _ = box.stream("process.Process/Start", {"process": command})
    data = [event["event"]["data"] for event in events if "data" in event["event"]]
    written = {name: base64.b64decode(text) for each in data for name, text in each.items()}
    assert written == {"stdout": b"a\xe2\xffb", "stderr": b"\x80"}


@pytest.mark.parametrize("code", ["'bar'", '"it\'s"', "''"])
def test_a_string_has_no_quotes(box, code):
    assert box.execute(code)[0]["text"] == eval(code)


def test_what_older_clients_ask_for(server):
    client = Client(server).make(allow_internet_access=True, allowInternetAccess=True)
    at = f"/sandboxes/{client.told['sandboxID']}"
    info = client.http.get(at).json()
    assert info["allowInternetAccess"] is False
    listed = client.http.get("/v2/sandboxes", params={"startedAfter": info["startedAt"]}).json()
    assert client.told["sandboxID"] in [one["sandboxID"] for one in listed]
    now = int(time.time())
    for seconds, found in (({}, 1), ({"start": now - 60, "end": now + 600}, 1), ({"end": now - 60}, 0)):
        assert len(client.http.get(f"{at}/metrics", params=seconds).json()) == found
    client.http.delete(at)


@pytest.mark.integration
def test_folders(box):
    code, told = box.call("filesystem.Filesystem/MakeDir", path="a/b")
    assert (code, told["entry"]["path"], told["entry"]["type"]) == (200, "/home/user/a/b", "FILE_TYPE_DIRECTORY")
    assert box.call("filesystem.Filesystem/MakeDir", path="a")[1]["code"] == "already_exists"
    odd = "import os\nopen(b'a/\\xff\\xfe', 'w'); os.utime('a/b', (1e15, 1e15))"
    box.execute(odd)
    code, told = box.call("filesystem.Filesystem/ListDir", path="a")
    assert (code, [one["name"] for one in told["entries"]]) == (200, ["b", "\ufffd\ufffd"])
    box.execute("os.mkdir('a/closed', 0)")
    code, told = box.call("filesystem.Filesystem/ListDir", path="a", depth=2)
    assert (code, [one["name"] for one in told["entries"]]) == (200, ["b", "closed", "\ufffd\ufffd"])
    assert box.call("filesystem.Filesystem/ListDir", path="a/closed")[0] == 403
    assert box.call("filesystem.Filesystem/ListDir", path="/usr", depth=9)[0] == 400, "that is too much"
    assert box.call("filesystem.Filesystem/GetWatcherEvents", watcherId="none")[0] == 404


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\0", b"\0\xff\xff\xff\xff", b"\1\0\0\0\0", b"\0\0\0\0\1[", b"\0\0\0\0\x02[]"]
)
def test_streams_of_no_messages(box, content):
    for method in ("process.Process/Start", "process.Process/Connect", "filesystem.Filesystem/WatchDir"):
        answer = box.http.post(f"/{method}", content=content, headers=STREAM)
        ((flags, last),) = opened(answer.content)
        assert (flags, last["error"]["code"]) == (2, "invalid_argument")
    assert box.http.post("/process.Process/Start", content=content).status_code == 415
    assert box.http.post("/process.Process/List", content=b"").status_code == 415


ODD = [
    None,
    True,
    -1,
    1.5,
    2**70,
    "",
    "x",
    "a\0b",
    "\ud800",
    "../..",
    [],
    [1],
    {},
    {"a": 1},
    {"a=b": "c"},
    {"": ""},
    {"pid": 2**32},
]


@pytest.mark.integration
def test_odd_values_are_reported_and_nothing_breaks(box):
    def sent(path, body, **headers):
        answer = box.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"} | headers)
        assert answer.status_code < 500, (path, body, answer.text)
        return answer

    for value in ODD:
        for key in ("templateID", "timeout", "metadata", "envVars", "mcp", "network", "autoPause"):
            made = sent("/v2/sandboxes", {"timeout": 5, key: value})
            if made.status_code == 201:
                box.http.delete(f"/sandboxes/{made.json()['sandboxID']}")
        sent(f"/v2/sandboxes/{box.told['sandboxID']}/connect", {"timeout": value})
        for key in ("code", "context_id", "language", "env_vars"):
            sent("/execute", {"code": "1", key: value})
        sent("/contexts", {"cwd": value})
        for method in ("Stat", "MakeDir", "ListDir", "CreateWatcher", "RemoveWatcher"):
            sent(f"/filesystem.Filesystem/{method}", {"path": value, "depth": value, "watcherId": value})
        for method in ("Update", "SendInput", "SendSignal", "CloseStdin"):
            sent(f"/process.Process/{method}", {"process": value, "input": value, "signal": value, "pty": value})
        for key in ("process", "pty", "tag", "stdin"):
            box.stream(
                "process.Process/Start", {"process": {"cmd": "/bin/true"}, key: value}, **{"Connect-Timeout-Ms": "900"}
            )
        for key in ("cmd", "args", "envs", "cwd"):
            box.stream("process.Process/Start", {"process": {"cmd": "/bin/true", key: value}})
    for key, value in (("limit", "0"), ("nextToken", "x"), ("order", "up"), ("state", "ill"), ("startedAfter", "x")):
        assert box.http.get("/v2/sandboxes", params={key: value}).status_code == 400
    for body in (b"[1]", b"{", b"\xff", b"[" * 100_000):
        assert box.http.post("/v2/sandboxes", content=body).status_code == 400
        assert box.http.post("/execute", content=body).status_code == 400
    assert box.execute("1")[0]["text"] == "1"


def test_what_sandboxes_here_cannot_have(server):
    http = Client(server).http
    assert http.post("/v2/sandboxes", json={"network": {"denyOut": ["0.0.0.0/0"], "allowOut": []}}).status_code == 201
    for wanted in (
        {"network": {"allowOut": ["1.1.1.1"]}},
        {"network": 1},
        {"autoPause": True},
        {"volumeMounts": [{"name": "v", "path": "/v"}]},
    ):
        answer = http.post("/v2/sandboxes", json={"templateID": "base", **wanted})
        assert (answer.status_code, answer.json()["code"]) == (400, 400)
    assert http.post("/sandboxes/none/pause").status_code == 404


def test_tokens_and_owners(serve, tmp_path):
    file, tokens = tokens_in(tmp_path, ann="sandboxes", bob="sandboxes", eve="admin")
    served = serve("--protocols", "e2b", "--tokens", file, "--sandboxes", "2", workers=1)
    key = {name: {"X-API-Key": token} for name, token in tokens.items()}
    for headers in ({}, {"X-API-Key": "e2b_" + "0" * 40}, key["eve"], {"Authorization": "Basic dXNlcjo="}):
        refused = patient.post(f"{served.http}/e2b/v2/sandboxes", headers=headers, content=b"{")
        assert (refused.status_code, refused.json()["code"]) == (401, 401)
    bearer = {"Authorization": f"Bearer {tokens['ann']}"}
    ann, bob = Client(served, **bearer).make(), Client(served, **key["bob"]).make()
    full = bob.http.post("/v2/sandboxes", json={})
    assert (full.status_code, int(full.headers["Retry-After"]) > 0) == (503, True)
    name = ann.told["sandboxID"]
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/timeout"), ("POST", "/pause"), ("GET", "/metrics")):
        assert bob.http.request(method, f"/sandboxes/{name}{path}").status_code == 404
    assert bob.http.post(f"/v2/sandboxes/{name}/connect").status_code == 404
    assert [one["sandboxID"] for one in bob.http.get("/v2/sandboxes").json()] == [bob.told["sandboxID"]]
    health, at = f"{served.http}/e2b/health", {"E2b-Sandbox-Id": name}
    for headers, status in (
        ({"X-Access-Token": ann.told["envdAccessToken"]}, 204),
        ({"E2B-Traffic-Access-Token": ann.told["trafficAccessToken"]}, 204),
        (key["ann"], 204),
        ({"X-Access-Token": bob.told["envdAccessToken"]}, 401),
        ({"X-Access-Token": "ü".encode()}, 401),
        (key["bob"], 502),
        (key["eve"], 401),
        ({}, 401),
    ):
        assert patient.get(health, headers=at | headers).status_code == status, headers
    assert ann.http.delete(f"/sandboxes/{name}").status_code == 204
    assert patient.get(health, headers=at | {"X-Access-Token": ann.told["envdAccessToken"]}).status_code == 502


TALKS = """
import asyncio, base64, hashlib
async def talk(reader, writer):
    head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode()
    key = next(line for line in head.splitlines() if line.lower().startswith("sec-websocket-key")).split(": ")[1]
    accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    lines = ["HTTP/1.1 101 S", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}", "", ""]
    writer.write("\\r\\n".join(lines).encode())
    frame = await reader.readexactly(6 + 5)
    said = bytes(byte ^ frame[2 + i % 4] for i, byte in enumerate(frame[6:]))
    writer.write(b"\\x81\\x05" + said[::-1] + b"\\x88\\x02\\x03\\xe8")
    await writer.drain()
async def main():
    await (await asyncio.start_server(talk, "127.0.0.1", 9000)).serve_forever()
asyncio.run(main())
"""


@pytest.mark.integration
def test_a_websocket_of_a_sandbox(box, server):
    host = f"9000-{box.told['sandboxID']}.localhost"
    start = {"process": {"cmd": "/usr/bin/env", "args": ["python3", "-c", TALKS.replace("\\\\", "\\")]}}
    with box.http.stream("POST", "/process.Process/Start", content=envelope(start), headers=STREAM):
        end = time.monotonic() + 60
        while True:
            with socket.create_connection(("127.0.0.1", server.port)) as sock:
                try:
                    with connect(f"ws://{host}/chat", sock=sock, close_timeout=1) as talk:
                        talk.send("hello")
                        assert talk.recv() == "olleh"
                        with pytest.raises(ConnectionClosedOK):
                            talk.recv()
                        break
                except InvalidStatus:  # it has not started
                    if time.monotonic() > end:
                        raise


def test_ports_need_the_sandboxs_own_key_where_there_are_tokens(guarded):
    served, token = guarded[0], guarded[1]["bob"]
    box = Client(served, **{"X-API-Key": token}).make()
    at, key = {"Host": f"8000-{box.told['sandboxID']}.localhost"}, box.told["trafficAccessToken"]
    for headers, status in (
        ({}, 401),
        ({"X-API-Key": token}, 400),
        ({"Authorization": f"Bearer {token}", "E2B-Traffic-Access-Token": key}, 400),
        ({"Authorization": "Basic of-its-own", "E2B-Traffic-Access-Token": key}, 502),
        ({"X-Access-Token": "of its own", "E2B-Traffic-Access-Token": key}, 502),
        ({"E2B-Traffic-Access-Token": ""}, 401),
        ({"E2B-Traffic-Access-Token": "x"}, 401),
        ({"E2B-Traffic-Access-Token": key}, 502),
    ):
        assert patient.get(f"{served.http}/", headers=at | headers).status_code == status
    assert patient.get(f"{served.http}/", headers={"Host": at["Host"].replace("localhost", "evil")}).status_code == 403
    numbers = range(8000, 8017)
    key_only = {"E2B-Traffic-Access-Token": key}
    hosts = [{"Host": at["Host"].replace("8000", str(number))} for number in numbers]
    answers = [patient.get(f"{served.http}/", headers=key_only | host).status_code for host in hosts]
    assert answers == [502] * 16 + [400]


@pytest.mark.integration
def test_snapshots_are_their_owners_and_so_many(serve, tmp_path):
    file, tokens = tokens_in(tmp_path, ann="sandboxes", bob="sandboxes")
    served = serve("--protocols", "e2b", "--tokens", file, "--sandboxes", "3")
    ann, bob = (Client(served, **{"X-API-Key": token}).make() for token in tokens.values())
    at = f"/sandboxes/{ann.told['sandboxID']}"
    names = [ann.http.post(f"{at}/snapshots", json={"name": f"s{n}"}).status_code for n in (*range(17), 0)]
    assert names == [201] * 16 + [503, 201], "one of the same name takes the place of the old one"
    assert bob.http.post(f"{at}/snapshots", json={}).status_code == 404
    assert bob.http.get("/snapshots").json() == []
    assert bob.http.delete("/templates/s1").status_code == 404
    assert bob.http.post("/v2/sandboxes", json={"templateID": "snapshots/s1"}).status_code == 400
    for body in ({"name": "a/b"}, {"name": "a:b"}, {"name": 5}, {"memory": True}):
        assert ann.http.post(f"{at}/snapshots", json=body).status_code == 400
    told = ann.http.post(f"{at}/fork", json={"count": 2}).json()
    assert [[*one] for one in told] == [["sandbox"], ["error"]], "there was room for one"
    assert told[1]["error"]["code"] == 503
    for body in ({"count": 0}, {"count": 21}, {"timeout": -1}):
        assert ann.http.post(f"{at}/fork", json=body).status_code == 400


def environ(server, key="any"):
    return {"E2B_API_KEY": key, "E2B_API_URL": f"{server.http}/e2b", "E2B_SANDBOX_URL": f"{server.http}/e2b"}


@pytest.mark.smoke
@pytest.mark.integration
@pytest.mark.parametrize("session", ["e2b_session.py", "e2b_async_session.py"])
def test_their_client(server, session):
    assert run("e2b", (HERE / session).read_text(), **environ(server))[-1] == "all"


WITH_A_TOKEN = """
import os
from e2b import AuthenticationException
from e2b_code_interpreter import Sandbox
box = Sandbox.create()
assert box.run_code("1", envs={"A": "b"}).text == "1"
context = box.create_code_context()
assert box.run_code("2", context=context).text == "2"
box.remove_code_context(context)
box.files.write("a", "b", user="user")
assert box.commands.run("cat a", user="root").stdout == "b"
assert Sandbox.connect(box.sandbox_id).run_code("3").text == "3"
os.environ["E2B_API_KEY"] = "e2b_" + "0" * 40
try:
    Sandbox.create()
except AuthenticationException:
    print("all")
"""


OLDER = """
import datetime
from e2b import FileType, SandboxQuery
from e2b_code_interpreter import Sandbox
box = Sandbox.create(envs={"A": "created"}, metadata={"m": "1"})
info = box.get_info()
assert info.metadata == {"m": "1"} and not info.allow_internet_access
assert box.sandbox_id in [one.sandbox_id for one in Sandbox.list(query=SandboxQuery(metadata={"m": "1"})).next_items()]
assert len(box.get_metrics(end=datetime.datetime.now())) == 1
for language, first, later in (
    ("python", "import os; os.environ['A']", "os.environ['A']"), ("bash", "echo $A", "echo $A"),
    ("javascript", "process.env.A", "process.env.A"),
):
    texts = [(lambda done: done.text or done.logs.stdout[0])(box.run_code(code, language=language, envs=envs)).strip()
             for code, envs in ((first, {"A": "call"}), (later, {}))]
    assert texts == ["call", "created"], texts
shown = box.run_code("from IPython.display import display, HTML; display({'text/latex': 'x'}, raw=True); HTML('<b>')")
assert [list(one.formats()) for one in shown.results] == [["latex"], ["text", "html"]], shown
box.files.write("d/a.txt", b"text")
box.files.write_files([{"path": "d/b", "data": "1"}, {"path": "d/c", "data": b"2"}])
assert box.commands.run("ln -s a.txt d/l; printf 'a\\\\342b'").stdout == "a\ufffdb"
link = box.files.get_info("d/l")
assert (link.type, link.symlink_target) == (FileType.FILE, "/home/user/d/a.txt")
assert {one.name: one.type for one in box.files.list("d")}["l"] == FileType.FILE
assert box.files.read("d/l") == "text" and not box.files.exists("none")
assert box.files.rename("d/b", "d/e").path == "/home/user/d/e"
running = box.commands.run("cat", background=True, stdin=True)
box.commands.send_stdin(running.pid, "in")
box.commands.kill(running.pid)
assert Sandbox.connect(box.sandbox_id).run_code("1").text == "1"
box.kill()
assert not box.is_running()
print("all")
"""


@pytest.mark.integration
@pytest.mark.parametrize("client", ["e2b", "e2b-old"])
def test_clients_of_two_ages(server, client):
    assert run(client, OLDER, **environ(server, "e2b_" + "0" * 40)) == ["all"]


@pytest.mark.integration
def test_their_client_with_a_token(serve, tmp_path):
    file, tokens = tokens_in(tmp_path, me="sandboxes")
    served = serve("--protocols", "e2b", "--tokens", file)
    assert run("e2b", WITH_A_TOKEN, **environ(served, tokens["me"])) == ["all"]
