"""OpenEnv's protocol, byte by byte; its clients are in test_openenv_clients.py."""

from __future__ import annotations

import json
import random

import pytest
from serving import patient
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import rollenv


@pytest.fixture
def openenv(shared_server):
    with connect(f"ws://127.0.0.1:{shared_server.port}/openenv/game:Sokoban-v0-tiny/ws") as socket_:

        def ask(kind, **data):
            socket_.send(json.dumps({"type": kind, "data": data}))
            return json.loads(socket_.recv(30))

        ask.raw = lambda text: (socket_.send(text), json.loads(socket_.recv(30)))[1]
        ask.socket = socket_
        yield ask


def test_openenv_plays_an_episode(openenv):
    twin = rollenv.make("game:Sokoban-v0-tiny")
    observation, info = twin.reset(3)
    answer = openenv("reset", seed=3, episode_id="ep")
    assert answer["type"] == "observation"
    assert answer["data"]["observation"] == {"text": observation, "terminated": False, "truncated": False, "info": info}
    assert (answer["data"]["reward"], answer["data"]["done"]) == (None, False)
    turns = 0
    while not answer["data"]["done"]:
        action = twin.oracle_action()
        text, reward, *_ = twin.step(action)
        answer = openenv("step", action=action)
        assert answer["data"]["observation"]["text"] == text
        assert answer["data"]["reward"] == reward
        turns += 1
    assert openenv("state") == {"type": "state", "data": {"episode_id": "ep", "step_count": turns}}
    assert openenv("step", action="x")["data"]["done"], "a step after the end changes nothing"
    openenv.socket.send(json.dumps({"type": "close"}))
    with pytest.raises(ConnectionClosed):
        openenv.socket.recv(10)


def test_openenv_errors_keep_the_session(openenv):
    codes = [openenv.raw(text)["data"]["code"] for text in ("{", "[1]", "null", '{"type": 5}', '{"type": "fly"}')]
    assert codes == ["INVALID_JSON", "INVALID_JSON", "INVALID_JSON", "UNKNOWN_TYPE", "UNKNOWN_TYPE"]
    assert openenv("step", action="x")["data"]["code"] == "EXECUTION_ERROR", "it was not reset"
    assert openenv("reset", seed="a")["data"]["code"] == "EXECUTION_ERROR"
    assert openenv("reset", seed=1)["type"] == "observation"
    for data in ({}, {"action": 5}, {"action": "x", "more": 1}, {"message": "x"}):
        assert openenv("step", **data)["data"]["code"] == "VALIDATION_ERROR"
    assert openenv("step", action="x")["type"] == "observation"


def test_openenv_tells_whatever_an_environment_returns(shared_server):
    with connect(f"ws://127.0.0.1:{shared_server.port}/openenv/test:Moody-v0/ws") as socket_:

        def ask(**message):
            socket_.send(json.dumps(message))
            return json.loads(socket_.recv(20))

        def call(name, **given):
            return ask(type="step", data={"type": "call_tool", "tool_name": name, "arguments": given})["data"]

        ask(type="reset")
        seen = ask(type="step", data={"action": "odd 3"})["data"]["observation"]
        assert seen["info"] == {
            "pair": ["a", 1],
            "name": "\ud800",
            "no": pytest.approx(float("nan"), nan_ok=True),
            "7": "7",
        }
        assert call("step", action="odd 3")["observation"]["result"]["info"].keys() == seen["info"].keys()
        rpc = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "step", "arguments": {"action": "x"}},
        }
        assert ask(type="mcp", data=rpc)["data"]["result"]["structuredContent"]["observation"]["text"] == "turn 3"
        for name, given, kind in (("fly", {}, "tool_not_found"), ("step", {"action": 5}, "invalid_args")):
            assert call(name, **given)["observation"]["error"]["error_type"] == kind
        assert len(call("x" * 100_000)["observation"]["tool_name"]) == 200
        assert ask(type="state")["data"]["step_count"] == 3


@pytest.mark.parametrize("seed", range(3))
def test_openenv_answers_in_the_order_of_the_messages(shared_server, seed):
    rng = random.Random(seed)
    kinds, wanted, turns = ["reset"], ["start"], 0
    for kind in rng.choices(["step", "state", "reset", "nonsense"], [8, 3, 1, 1], k=60):
        kinds.append(kind)
        turns = {"step": turns + 1, "reset": 0}.get(kind, turns)
        wanted.append({"step": f"{turns} ", "state": turns, "reset": "start"}.get(kind, "UNKNOWN_TYPE"))
    with connect(f"ws://127.0.0.1:{shared_server.port}/openenv/test:Echo-v0/ws") as socket_:
        for kind in kinds:
            text = json.dumps({"type": kind, "data": {"action": "a"} if kind == "step" else {}})
            socket_.send([text[:9], text[9:]] if rng.random() < 0.2 else text)
        for right in wanted:
            answer = json.loads(socket_.recv(30))["data"]
            found = answer.get("code", answer.get("step_count", answer.get("observation", {}).get("text")))
            assert str(found).startswith(right) if isinstance(right, str) else found == right, answer


def test_openenv_over_http(shared_server):
    base = f"{shared_server.http}/openenv/game:Sokoban-v0-tiny"
    assert patient.get(f"{base}/health").json() == {"status": "healthy"}
    assert patient.get(f"{shared_server.http}/openenv/no:Such-v0/health").status_code == 404
    assert patient.get(f"{base}/metadata").json()["name"] == "game:Sokoban-v0-tiny"
    schema = patient.get(f"{base}/schema").json()
    assert set(schema) == {"action", "observation", "state"}
    first = patient.post(f"{base}/reset", json={"seed": 3}).json()
    assert first["observation"]["text"] == rollenv.make("game:Sokoban-v0-tiny").reset(3)[0]
    echo = f"{shared_server.http}/openenv/test:Echo-v0"
    assert patient.post(f"{echo}/step", json={"action": {"action": "x"}}).json()["done"] is False
    assert patient.post(f"{base}/step", json={"action": {"wrong": 1}}).status_code == 422
    assert patient.get(f"{base}/state").json() == {"episode_id": None, "step_count": 0}


def test_openenv_without_room(serve):
    served = serve("--sessions", "1", workers=1)
    url = f"ws://127.0.0.1:{served.port}/openenv/test:Echo-v0/ws"
    with connect(url), connect(url) as second:
        told = json.loads(second.recv(10))
        assert told["data"]["code"] == "CAPACITY_REACHED"
        assert (told["data"]["active_sessions"], told["data"]["max_sessions"]) == (1, 1)
        with pytest.raises(ConnectionClosed):
            second.recv(10)
