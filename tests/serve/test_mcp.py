"""MCP: environments and sandboxes as tools of agents."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from clients import expected, run
from plain_clients import ACCEPT, McpSession, ToolError
from serving import patient, tokens_in
from waiting import eventually

import rollenv
from rollenv.core.tools.mcp import MCPTool


@pytest.fixture(scope="module")
def general(server):
    return McpSession(server.http)


@pytest.fixture
def talk(server):
    talk = McpSession(server.http)
    yield talk
    talk.end()


def held(server):
    health = patient.get(f"{server.http}/health").json()
    return health["sessions"]["open"], health["sandboxes"]["open"]


def play(step, twin):
    """Play an expert's episode beside a twin at home."""
    done = False
    while not done:
        action = twin.oracle_action()
        observation, reward, terminated, truncated, info = twin.step(action)
        told = step(action=action)
        assert told == {
            "observation": observation,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
        }
        done = terminated or truncated


def test_an_episode_is_what_it_is_at_home(talk):
    twin = rollenv.make("game:Sokoban-v0-tiny")
    observation, info = twin.reset(3)
    begun = talk.call("reset", env_id="game:Sokoban-v0-tiny", seed=3)
    session = begun.pop("session")
    assert begun == {"observation": observation, "info": info}
    play(lambda action: talk.call("step", session=session, action=action), twin)
    with pytest.raises(ToolError, match="over"):
        talk.call("step", session=session, action="up")
    assert talk.call("reset", session=session, seed=3)["observation"] == observation
    assert talk.call("close", session=session) == {"ended": session}
    with pytest.raises(ToolError, match="session"):
        talk.call("step", session=session, action="up")


def test_one_environment_needs_no_names(server):
    talk = McpSession(server.http, "/mcp/env/game:Sokoban-v0-tiny")
    assert [tool["name"] for tool in talk.ask("tools/list")["result"]["tools"]] == ["reset", "step"]
    with pytest.raises(ToolError, match="reset"):
        talk.call("step", action="up")
    twin = rollenv.make("game:Sokoban-v0-tiny")
    observation, info = twin.reset(4)
    assert talk.call("reset", seed=4) == {"observation": observation, "info": info}
    play(lambda action: talk.call("step", action=action), twin)
    assert talk.call("reset", seed=4)["observation"] == observation
    before = held(server)[0]
    assert talk.end().status_code == 200
    assert eventually(lambda: held(server)[0] == before - 1)
    assert talk.post("tools/list").status_code == 404
    unknown = McpSession(server.http, "/mcp/env/no:Such-v0").hello
    assert unknown.status_code == 404
    assert "no environment is registered" in unknown.text


def test_the_text_is_what_an_agent_reads(talk):
    told = talk.ask("tools/call", {"name": "reset", "arguments": {"env_id": "game:Sokoban-v0-tiny", "seed": 3}})
    observation, info = rollenv.make("game:Sokoban-v0-tiny").reset(3)
    text = told["result"]["content"][0]["text"]
    assert text.startswith(f"{observation}\n{info['suffix']}")
    session = told["result"]["structuredContent"]["session"]
    assert text.endswith(f"[session {session}]")
    told = talk.ask("tools/call", {"name": "step", "arguments": {"session": session, "action": "up"}})
    assert "[reward 0]" in told["result"]["content"][0]["text"]


def test_finding_an_environment(general):
    every, second = general.call("list_environments"), general.call("list_environments", page=2)
    assert every["total"] > len(every["environments"]) > 10
    assert every["pages"] > 1
    assert not {each["env_id"] for each in every["environments"]} & {each["env_id"] for each in second["environments"]}
    found = general.call("list_environments", search="SOKOBAN tiny")
    assert "game:Sokoban-v0-tiny" in [each["env_id"] for each in found["environments"]]
    assert general.call("list_environments", search="nothing is called so")["environments"] == []
    assert general.call("list_environments", page=10**9)["environments"] == []
    described = general.call("describe_environment", env_id="test:Rows-v0")
    assert described["tasks"].startswith("numbered")
    assert general.call("reset", env_id="test:Rows-v0", index=5)["observation"] == "question 5"
    with pytest.raises(ToolError, match="did you mean"):
        general.call("describe_environment", env_id="game:Sokobam-v0")


def test_code_keeps_its_state_and_its_errors_are_results(talk):
    done = talk.call("run_code", code="x = 40\nprint('é')\nx + 2")
    assert (done["stdout"], done["result"], done["error"], done["exit_code"]) == ("é\n", "42", None, None)
    failed = talk.call("run_code", code="x / 0", sandbox=done["sandbox"])
    assert failed["error"]["name"] == "ZeroDivisionError"
    assert talk.call("run_code", code="echo $((6 * 7)); exit 3", language="sh")["stdout"] == "42\n"
    assert talk.call("run_code", code="while True: pass", timeout=0.3)["error"]["name"] == "Timeout"
    command = talk.call("run_command", command="cat; echo out; echo err >&2; exit 3")
    assert (command["stdout"], command["stderr"], command["exit_code"]) == ("out\n", "err\n", 3)
    assert talk.call("run_command", command="sleep 50", timeout=0.3)["error"]["name"] == "Timeout"
    flood = talk.call("run_code", code="print('y' * 1_000_000)")
    assert len(flood["stdout"]) < 25_000
    assert "characters left out" in flood["stdout"]
    with pytest.raises(ToolError, match="'cobol'"):
        talk.call("run_code", code="1", language="cobol")


def test_pictures_are_pictures(talk):
    code = "class P:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\nP()"
    told = talk.ask("tools/call", {"name": "run_code", "arguments": {"code": code}})["result"]
    (picture,) = [part for part in told["content"] if part["type"] == "image"]
    assert picture["mimeType"] == "image/png"
    assert base64.b64decode(picture["data"]).startswith(b"\x89PNG")


def test_files(talk):
    data = bytes(range(256)) * 10
    talk.call("write_file", path="a/é.bin", content=base64.b64encode(data).decode(), encoding="base64")
    read = talk.call("read_file", path="a/é.bin", encoding="base64", offset=5, limit=7)
    assert (base64.b64decode(read["content"]), read["size"], read["more"]) == (data[5:12], 2560, True)
    read = talk.call("read_file", path="a/é.bin", encoding="base64", offset=2550)
    assert (base64.b64decode(read["content"]), read["more"]) == (data[2550:], False)
    talk.call("write_file", path="b.txt", content="grüße")
    assert talk.call("read_file", path="b.txt")["content"] == "grüße"
    assert [file["name"] for file in talk.call("list_files")["files"]] == ["a", "b.txt"]
    talk.call("run_code", code="import os\nfor i in range(1500): open(f'a/{i}', 'w').close()\nopen(b'a/\\xff', 'w')")
    listed = talk.call("list_files", path="a")
    assert (len(listed["files"]), listed["more"]) == (1000, True)
    for arguments in ({"path": "none"}, {"path": "a"}, {"path": "/dev/zero"}, {"path": "\0"}, {"path": "x" * 10_000}):
        with pytest.raises(ToolError):
            talk.call("read_file", **arguments)
    for path in ("/etc/passwd", "../../etc/x", "\0", ""):
        with pytest.raises(ToolError):
            talk.call("write_file", path=path, content="")
    with pytest.raises(ToolError, match="not base64"):
        talk.call("write_file", path="c", content="?", encoding="base64")


def test_a_sandbox_that_has_ended_is_missed_once(talk):
    first = talk.call("run_code", code="x = 1")["sandbox"]
    talk.call("close_sandbox", sandbox=first)
    with pytest.raises(ToolError, match="sandbox"):
        talk.call("run_code", code="x", sandbox=first)
    second = talk.call("run_code", code="x")
    assert second["error"]["name"] == "NameError"
    McpSession(str(talk.http.base_url)).call("close_sandbox", sandbox=second["sandbox"])  # the same owner, elsewhere
    with pytest.raises(ToolError, match="starts another"):
        talk.call("run_code", code="1")
    assert talk.call("run_code", code="1")["sandbox"] not in (first, second["sandbox"])


@pytest.mark.integration
def test_what_a_session_opened_ends_with_it(serve):
    served = serve("--protocols", "mcp")
    talk = McpSession(served.http)
    for _ in range(3):
        talk.call("reset", env_id="test:Echo-v0")
    talk.call("run_code", code="1")
    assert held(served) == (3, 1)
    slow = threading.Thread(target=lambda: talk.post("tools/call", {"name": "run_code", "arguments": SLOW}))
    slow.start()
    time.sleep(0.5)
    assert talk.end().status_code == 200
    assert eventually(lambda: held(served) == (0, 0))
    slow.join(10)
    assert not slow.is_alive()
    for _ in range(20):
        talk = McpSession(served.http)
        talk.call("reset", env_id="test:Echo-v0")
        talk.call("write_file", path="x", content="x")
        talk.end()
    assert eventually(lambda: held(served) == (0, 0))


SLOW = {"code": "import time; time.sleep(100)", "timeout": 200}


@pytest.mark.integration
def test_idle_sessions_end(serve):
    served = serve("--protocols", "mcp", "--idle", "2")
    talk = McpSession(served.http)
    talk.call("run_command", command="sleep 3", timeout=10)
    assert talk.call("run_code", code="1")["result"] == "1", "it was not idle"
    assert held(served)[1] == 1
    assert eventually(lambda: held(served) == (0, 0))
    assert eventually(lambda: talk.post("tools/list").status_code == 404, 1)


def test_there_is_room_for_so_many(serve):
    served = serve("--protocols", "mcp", "--sessions", "2", "--per-client", "1", workers=1)
    talk = McpSession(served.http)
    refused = McpSession(served.http).hello
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "MCP sessions are taken" in refused.json()["error"]["message"]
    talk.call("reset", env_id="test:Echo-v0")
    with pytest.raises(ToolError, match="sessions"):
        talk.call("reset", env_id="test:Echo-v0")
    for wrong in ({}, {"Accept": "text/plain"}):  # what is refused leaves nothing
        assert patient.post(f"{served.http}/mcp", json={}, headers=wrong).status_code >= 400
    talk.end()
    assert eventually(lambda: McpSession(served.http).hello.status_code == 200)


def test_a_cancelled_call_stops(server, talk):
    sandbox = talk.call("run_code", code="import time")["sandbox"]
    answers = []
    arguments = {"code": "open('begun', 'w').close(); time.sleep(60)", "timeout": 100}
    slow = threading.Thread(
        target=lambda: answers.append(talk.post("tools/call", {"name": "run_code", "arguments": arguments}, number=77))
    )
    slow.start()
    assert eventually(lambda: "begun" in str(talk.call("list_files")))
    with pytest.raises(ToolError, match="running"):
        talk.call("run_code", code="1")
    assert talk.post("notifications/cancelled", {"requestId": 77}, number=None).status_code == 202
    slow.join(30)
    assert not slow.is_alive()
    assert eventually(lambda: answers and "cancelled" in answers[0].text)

    def free():
        try:
            return talk.call("run_code", code="1", sandbox=sandbox)["result"] == "1"
        except ToolError:
            return False

    assert eventually(free)


def test_a_client_that_leaves_in_the_middle_may_come_back(server, talk):
    session = talk.call("reset", env_id="test:Moody-v0")["session"]
    arguments = {"name": "step", "arguments": {"session": session, "action": "hang 1"}}
    with pytest.raises(httpx.ReadTimeout):
        talk.http.post(
            "/mcp", json={"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": arguments}, timeout=0.3
        )
    assert talk.call("step", session=session, action="x")["observation"] == "turn 2", "the call went on"


@pytest.mark.integration
def test_tokens_and_owners(serve, tmp_path):
    both = "environments sandboxes"
    file, tokens = tokens_in(tmp_path, ann=both, eve=both, bob="sandboxes", cat="environments")
    served = serve("--protocols", "mcp", "--tokens", file)
    ann, eve, bob, cat = (McpSession(served.http, token=token) for token in tokens.values())
    for token, why in ((None, "token is needed"), ("x", "token is wrong")):
        refused = McpSession(served.http, token=token).hello
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert why in refused.json()["error"]["message"]
    tools = {tool["name"] for tool in bob.ask("tools/list")["result"]["tools"]}
    assert "run_code" in tools
    assert "reset" not in tools
    with pytest.raises(ToolError, match="no tool"):
        bob.call("reset", env_id="test:Echo-v0")
    with pytest.raises(ToolError, match="no tool"):
        cat.call("run_code", code="1")
    session, sandbox = ann.call("reset", env_id="test:Echo-v0")["session"], ann.call("run_code", code="1")["sandbox"]
    for name, arguments in (
        ("step", {"session": session, "action": "x"}),
        ("reset", {"session": session}),
        ("close", {"session": session}),
        ("run_code", {"code": "1", "sandbox": sandbox}),
        ("close_sandbox", {"sandbox": sandbox}),
    ):
        with pytest.raises(ToolError, match="no such"):
            eve.call(name, **arguments)
    eve.http.headers["Mcp-Session-Id"] = ann.http.headers["Mcp-Session-Id"]
    assert eve.post("tools/list").status_code == 404
    assert eve.end().status_code == 404
    assert ann.call("step", session=session, action="x")["reward"] == 1.0
    assert McpSession(served.http, "/mcp/env/test:Echo-v0", tokens["cat"]).call("reset")["observation"]


WRONG = [
    ("step", {}),
    ("step", {"session": 5, "action": "x"}),
    ("step", {"session": "x" * 100_000, "action": "x"}),
    ("step", {"session": "../..", "action": "x"}),
    ("reset", {}),
    ("reset", {"env_id": "test:Echo-v0", "session": "x"}),
    ("reset", {"env_id": "rollenv+ws://localhost:1/x"}),
    ("reset", {"env_id": "test:Echo-v0", "seed": -1}),
    ("reset", {"env_id": "test:Echo-v0", "seed": "many"}),
    ("reset", {"env_id": "test:Echo-v0", "index": 5}),
    ("reset", {"env_id": ["test:Echo-v0"]}),
    ("list_environments", {"page": 0}),
    ("list_environments", {"search": None}),
    ("run_code", {"code": 5}),
    ("run_code", {"code": "1", "timeout": -1}),
    ("run_code", {"code": "1", "timeout": "long"}),
    ("run_code", {"code": "1", "language": ["python"]}),
    ("run_code", {"code": "1", "more": 1}),
    ("run_command", {"command": ["ls"]}),
    ("run_command", {"command": "ls", "cwd": "/none"}),
    ("read_file", {"path": "x", "offset": -1}),
    ("read_file", {"path": "x", "limit": 1 << 40}),
    ("write_file", {"path": "x"}),
    ("write_file", {"path": "x", "content": "", "encoding": "latin-1"}),
    ("_opened", {"env_id": "test:Echo-v0"}),
    ("", {}),
]


@pytest.mark.parametrize(("name", "arguments"), WRONG, ids=lambda value: f"{value!r:.40}")
def test_wrong_calls_are_errors_that_an_agent_can_read(general, name, arguments):
    with pytest.raises(ToolError) as caught:
        general.call(name, **arguments)
    assert "server failed" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"[1]", b"5", b"\xff", b'{"jsonrpc": "2.0"}', b"[" * 100_000, b'{"a":"\\ud800"}', b"1e999999"],
    ids=lambda value: repr(value[:20]),
)
def test_bodies_that_are_no_messages(server, general, content):
    headers = ACCEPT | {"Content-Type": "application/json"}
    for more in ({}, {"Mcp-Session-Id": general.http.headers["Mcp-Session-Id"]}):
        answer = patient.post(f"{server.http}/mcp", content=content, headers=headers | more)
        assert 400 <= answer.status_code < 500
        assert "error" in answer.json()
    assert general.call("run_code", code="1")["result"] == "1", "the session is as good as new"


def test_requests_that_no_session_is_for(server, general):
    mine = ACCEPT | {"Mcp-Session-Id": general.http.headers["Mcp-Session-Id"]}
    assert patient.get(f"{server.http}/mcp", headers=mine).status_code == 405
    assert patient.put(f"{server.http}/mcp", headers=mine).status_code == 405
    assert patient.delete(f"{server.http}/mcp").status_code == 400
    for name in ("x", "0" * 32):
        assert patient.delete(f"{server.http}/mcp", headers={"Mcp-Session-Id": name}).status_code == 404
    refused = general.post("tools/list", number="a", **{"Mcp-Protocol-Version": "2026-07-28"}).json()
    assert (refused["id"], refused["error"]["code"]) == ("a", -32022)
    assert "2025-11-25" in refused["error"]["data"]["supported"]
    assert general.post("tools/list", **{"Mcp-Protocol-Version": "x"}).status_code == 400
    assert patient.post(f"{server.http}/mcp/env/test:Echo-v0", json={}, headers=mine).status_code == 404
    assert general.ask("no/such")["error"]["code"] == -32601
    assert general.ask("tools/call", {"name": 5})["error"]["code"] == -32602


def test_odd_answers_of_environments(talk):
    session = talk.call("reset", env_id="test:Moody-v0")["session"]
    told = talk.call("step", session=session, action="odd 3")
    assert told["observation"] == "   "
    assert told["info"] == {"pair": ["a", 1], "name": "?", "no": None, "7": "7"}
    assert len(talk.call("step", session=session, action="huge 3000000")["observation"]) == 3_000_000
    for action in ("raise ouch", "wrong", "die"):
        with pytest.raises(ToolError):
            talk.call("step", session=session, action=action)


def test_the_tool_of_rollenv_itself(server):
    with_env = MCPTool(f"{server.http}/mcp/env/test:Echo-v0")
    try:
        names = [schema["function"]["name"] for schema in with_env.schemas()]
        assert names == ["reset", "step"]
    finally:
        with_env.close()


REAL = """
import asyncio, os, sys
from mcp import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client

async def episode(call, reset, step):
    first = (await call("reset", reset)).structured_content
    print(repr(first["observation"]))
    step = step | ({"session": first["session"]} if "session" in first else {})
    for action in os.environ["ACTIONS"].split("|"):
        seen = (await call("step", step | {"action": action})).structured_content
        print(repr(tuple(seen[name] for name in ("observation", "reward", "terminated", "truncated"))))
    late = await call("step", step | {"action": "late"})
    assert late.is_error and "over" in late.content[0].text, late

async def main():
    url = os.environ["URL"] + "/mcp"
    async with streamable_http_client(url) as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert {"reset", "step", "run_code", "list_environments"} <= set(tools)
        await episode(session.call_tool, {"env_id": "game:Sokoban-v0-tiny", "seed": 3}, {})
        done = await session.call_tool("run_code", {"code": "print(6 * 7)"})
        assert done.content[0].text == "42" and done.structured_content["stdout"] == "42\\n", done
        wrong = await session.call_tool("run_code", {"cod": "1"})
        assert wrong.is_error and "code: Field required" in wrong.content[0].text, wrong
    async with Client(url + "/env/game:Sokoban-v0-tiny") as client:
        await episode(client.call_tool, {"seed": 3}, {})
        both = await asyncio.gather(*(client.call_tool("reset", {"seed": n}) for n in range(8)))
        assert not any(each.is_error for each in both)
    try:
        async with Client(url + "/env/no:Such-v0"):
            pass
    except BaseException as error:
        assert "no environment is registered" in repr(error), repr(error)
    else:
        raise SystemExit("there is no such environment")

asyncio.run(main())
"""


@pytest.mark.smoke
@pytest.mark.integration
def test_the_real_client(server):
    seen, actions = expected(3)
    before = held(server)
    assert run("mcp", REAL, URL=server.http, ACTIONS=actions) == seen * 2
    assert eventually(lambda: held(server) == before)


@pytest.mark.integration
def test_a_server_that_stops_ends_its_sessions(serve):
    served = serve("--protocols", "mcp", "--drain", "0")
    talk = McpSession(served.http)
    talk.call("run_code", code="1")

    def leave():
        with contextlib.suppress(httpx.HTTPError):
            talk.post("tools/call", {"name": "run_code", "arguments": SLOW})

    slow = threading.Thread(target=leave)
    slow.start()
    time.sleep(0.5)
    served.process.terminate()
    assert served.process.wait(30) == 0
    slow.join(10)
    assert not slow.is_alive()


def test_two_requests_of_one_id_at_once_are_not_mixed_up(server):
    talk = McpSession(server.http)
    body = {"jsonrpc": "2.0", "id": 5, "method": "tools/call"}

    def said(word):
        params = {"name": "run_command", "arguments": {"command": f"sleep 0.3; echo {word}"}}
        return talk.http.post(talk.path, json=body | {"params": params}).text

    words = [f"word{n}" for n in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert all(word in answer for word, answer in zip(words, threads.map(said, words), strict=True))
    for _ in range(50):  # the next may come before the server has put the last away
        assert talk.http.post(talk.path, json={"jsonrpc": "2.0", "id": 5, "method": "ping"}).status_code == 200
    talk.end()
