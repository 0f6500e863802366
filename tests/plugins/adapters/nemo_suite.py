"""NeMo Gym's own agent plays episodes of a server of ours: both are its FastAPI applications."""

from __future__ import annotations

import asyncio
import json
import time
from unittest.mock import MagicMock

import pytest
import yaml
from fastapi.testclient import TestClient
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.server_utils import ServerClient
from peer_envs import CLOSED, solved
from responses_api_agents.gymnasium_agent.app import GymnasiumAgent, GymnasiumAgentConfig

from rollenv.plugins.adapters.nemo_gym import RollenvConfig, RollenvServer, write_server


def server(env_id="peers:Moody-v0", **settings):
    config = RollenvConfig(host="", port=0, entrypoint="", name="ours", env_id=env_id, **settings)
    made = RollenvServer(config=config, server_client=MagicMock(spec=ServerClient))
    return made, TestClient(made.setup_webserver())


def response(text):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
    told = {"id": "r", "created_at": 1, "model": "stub", "object": "response", "output": [message]}
    return told | {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}


def row(**fields):
    return {"responses_create_params": {"input": [{"role": "system", "content": "Play."}]}, **fields}


def step(client, text, **fields):
    return client.post("/step", json=row(**fields) | {"response": response(text)})


def test_an_episode_over_http_is_ours():
    seen, replies, rewards = solved("game:Sokoban-v0-tiny", 3)
    made, client = server("game:Sokoban-v0-tiny")
    assert client.post("/reset", json=row(seed=3)).json()["observation"] == seen[0]
    for i, reply in enumerate(replies):
        told = step(client, reply, seed=3).json()
        assert (told["observation"], told["reward"]) == (seen[i + 1], rewards[i])
    assert (told["terminated"], told["truncated"]) == (True, False)
    assert told["info"]["success"] is True
    assert not made.session_state
    late = step(client, "x")
    assert late.status_code == 409
    assert "\n" not in late.json()["detail"]


class Wire(MagicMock):
    """The agent's client: what it posts goes to our application, or to a model that says what it is told."""

    async def post(self, server_name, url_path, json=None, cookies=None, **kwargs):
        if server_name == "policy_model":
            return Answer(response(next(self.replies)))
        self.client.cookies = dict(cookies or {})
        body = json if isinstance(json, dict) else json.model_dump()
        got = await asyncio.to_thread(self.client.post, url_path, json=body)
        return Answer(got.json(), got.status_code, dict(got.cookies))


class Answer:
    def __init__(self, content, status=200, cookies=None):
        self.content, self.status, self.ok, self.cookies = content, status, status < 400, cookies or {}

    async def read(self):
        return json.dumps(self.content).encode()

    async def json(self):
        return self.content

    def raise_for_status(self):
        assert self.ok, self.content


def test_their_agent_plays_an_episode():
    seen, replies, rewards = solved("game:Sokoban-v0-tiny", 5)
    _, client = server("game:Sokoban-v0-tiny")
    wire = Wire(spec=ServerClient)
    wire.client, wire.replies = client, iter(replies)
    refs = {
        "resources_server": ResourcesServerRef(type="resources_servers", name="ours"),
        "model_server": ModelServerRef(type="responses_api_models", name="policy_model"),
    }
    config = GymnasiumAgentConfig(host="", port=0, entrypoint="", name="agent", max_steps=100, **refs)
    agent = GymnasiumAgent(config=config, server_client=wire)
    app = TestClient(agent.setup_webserver())
    told = app.post("/run", json=row(seed=5))
    assert told.status_code == 200, told.text
    result = told.json()
    assert result["reward"] == pytest.approx(sum(rewards))
    assert result["terminated"] is True
    assert result["responses_create_params"]["input"][-1]["content"] == seen[0]
    said = [item["content"] for item in result["response"]["output"] if item.get("role") == "user"]
    assert said == seen[1:-1]


def test_rows_and_the_configuration_choose_the_environment():
    _, client = server()
    told = {}
    for name, fields in {"1": {"seed": 1}, "2": {"seed": 2}, "index": {"seed": 1, "options": {"index": 3}}}.items():
        told[name] = client.post("/reset", json=row(**fields)).json()["observation"]
    assert len(set(told.values())) == 3
    filled = row(seed=1, env_id=None, env_kwargs={"a": None}, options={"index": 3, "b": None})
    assert client.post("/reset", json=filled).json()["observation"] == told["index"]
    for wrong in ({"seed": "x"}, {"env_kwargs": "{}"}):
        assert client.post("/reset", json=row(**wrong)).status_code == 400
    assert client.post("/reset", json=row(env_id="game:Sokoban-v0-tiny", seed=1)).json()["observation"]
    info = client.post("/reset", json=row(seed=1)).json()["info"]
    assert info == {"odd": "Infinity", "kind": "{1, 2}"}
    assert step(client, "late").json()["truncated"] is True


def test_what_is_wrong_is_one_line():
    _, client = server("")
    for fields in ({}, {"env_id": 5}, {"env_id": "game:Sokobam-v0"}, {"env_id": "peers:Moody-v0", "seed": -1},
                   {"env_id": "peers:Moody-v0", "env_kwargs": {"x": 1}}):  # fmt: skip
        got = client.post("/reset", json=row(**fields))
        assert got.status_code in (400, 500), fields
        assert "\n" not in got.json()["detail"]
    assert step(client, "x").status_code == 409


def test_an_environment_that_raises_is_one_line_and_is_closed():
    made, client = server()
    client.post("/reset", json=row(seed=1))
    CLOSED.clear()
    got = step(client, "raise")
    assert got.status_code == 500
    assert "failed at turn 1: RuntimeError: two lines" in got.json()["detail"]
    assert CLOSED
    assert not made.session_state
    assert client.post("/reset", json=row(seed=1)).status_code == 200


@pytest.mark.parametrize("reply", ["", "x" * 1_000_000])
def test_odd_replies_are_played(reply):
    _, client = server()
    client.post("/reset", json=row(seed=1))
    assert step(client, reply).json()["reward"] == 0.5
    nothing = response("") | {"output": []}
    assert client.post("/step", json=row() | {"response": nothing}).status_code == 200


def test_sessions_are_apart_and_those_that_are_given_up_are_closed():
    made, one = server(idle_seconds=0.3)
    two = TestClient(one.app)
    first, second = one.post("/reset", json=row(seed=1)).json(), two.post("/reset", json=row(seed=2)).json()
    assert first["observation"] != second["observation"]
    assert len(made.session_state) == 2
    CLOSED.clear()
    time.sleep(0.4)
    TestClient(one.app).post("/reset", json=row(seed=3))
    assert len(made.session_state) == 1
    assert len(CLOSED) == 2
    assert step(one, "x").status_code == 409


def test_the_folder_of_a_server(tmp_path):
    path = write_server(tmp_path / "sokoban", "game:Sokoban-v0-tiny", rows=3, prompt="Play.", max_turns=7)
    config = yaml.safe_load((path / "configs" / "sokoban.yaml").read_text())
    ours = config["sokoban"]["resources_servers"]["sokoban"]
    assert (ours["env_id"], ours["env_kwargs"]) == ("game:Sokoban-v0-tiny", {"max_turns": 7})
    assert config["sokoban_agent"]["responses_api_agents"]["gymnasium_agent"]["max_steps"] == 100
    known = {k: v for k, v in ours.items() if k in RollenvConfig.model_fields}
    made = RollenvServer(
        config=RollenvConfig(host="", port=0, name="x", **known), server_client=MagicMock(spec=ServerClient)
    )
    rows = [json.loads(line) for line in (path / "data" / "example.jsonl").read_text().splitlines()]
    assert [each["seed"] for each in rows] == [0, 1, 2]
    client = TestClient(made.setup_webserver())
    assert all(client.post("/reset", json=each).status_code == 200 for each in rows)
    compile((path / "app.py").read_text(), "app.py", "exec")
