"""Who runs a gateway opens, rewards and ends sessions at a port of its own; a foreign model's chats are recorded."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import signal
import subprocess
import sys

import httpx
import pytest
from chat_server import ChatServer, completion
from gateway_calls import BASH, HELLO, body, call_over_http, post, scripted

import rollenv
from rollenv.agents.chat.endpoint import Endpoint, Patience
from rollenv.agents.gateway.endpoint import Upstream
from rollenv.agents.gateway.gateway import Gateway
from rollenv.agents.gateway.server import admin_app
from rollenv.cli import gateway as gateway_command
from rollenv.core.http_server import HttpServer


def administered(work):
    async def run():
        async with Gateway(scripted(lambda i: f"answer {i}")) as gateway:
            admin = HttpServer(admin_app(gateway, "the key"), "127.0.0.1", 0)
            await admin.start()
            url, head = f"http://127.0.0.1:{admin.port}", {"Authorization": "Bearer the key"}
            async with httpx.AsyncClient(base_url=url, headers=head, timeout=30) as client:
                result = await work(client)
            await admin.stop()
            admin.close()
            return result

    return asyncio.run(run())


def test_an_episode_is_opened_played_rewarded_and_ended():
    async def work(client):
        opened = (await client.post("/sessions", json={"task": "an addition", "seed": 3})).json()
        answer = (await client.post(f"{opened['base_url']}/chat/completions", json=HELLO)).json()
        one = f"/sessions/{opened['id']}"
        for call in ("last", answer["id"]):
            assert (await client.post(f"{one}/reward", json={"value": 0.25, "call": call})).json() == {}
        (sample,) = (await client.get(f"{one}/samples")).json()
        ended = (await client.post(f"{one}/finish", json={"reward": 1, "success": False})).json()
        late = await client.post(f"{opened['base_url']}/chat/completions", json=HELLO)
        metrics = (await client.get("/metrics")).text
        await client.delete(one)
        gone = await client.get(one)
        return sample, ended, late.status_code, metrics, gone.status_code

    sample, ended, late, metrics, gone = administered(work)
    assert sum(sample["mask"]) == ended["drawn_tokens"] > 0
    assert (ended["success"], ended["reward"], ended["nodes"][0]["reward"], ended["nodes"][0]["kind"]) == (
        False,
        1,
        0.5,
        "main",
    )
    assert (late, gone) == (410, 404)
    assert f"rollenv_gateway_drawn_tokens_total {ended['drawn_tokens']}" in metrics
    assert 'rollenv_gateway_events_total{event="calls"} 1' in metrics


@pytest.mark.parametrize(
    ("path", "data", "status"),
    [
        ("/sessions", {"tsk": "x"}, 400),
        ("/sessions", {"seed": True}, 400),
        ("/sessions", {"key": "short"}, 400),
        ("/sessions", [], 400),
        ("/sessions", b'{"task"', 400),
        ("/sessions", b"[" * 100_000, 400),
        ("/sessions", b"\xff", 400),
        ("/sessions/none/finish", {}, 404),
    ],
)
def test_wrong_requests_are_refused(path, data, status):
    async def work(client):
        answer = await client.post(path, content=data if isinstance(data, bytes) else json.dumps(data))
        return answer.status_code, answer.json()["error"]

    found, error = administered(work)
    assert found == status
    assert isinstance(data, dict | list) or "not JSON" in error


def test_nobody_administers_without_the_key():
    async def work(client):
        return [
            (await client.post("/sessions", json={}, headers={"Authorization": value})).status_code
            for value in ("none", "Bearer", "Bearer the kex", "the key", b"Bearer th\xe9 key")
        ]

    assert administered(work) == [401] * 5


NO_RECORDS = ["my notes", "my notes\n", '{"a": 1}', '{"event":"start"}\n', '{"event":"open","session":"a"}\n', "[1]\n"]


@pytest.mark.parametrize("held", NO_RECORDS)
def test_a_file_that_is_no_record_is_refused_and_stays(tmp_path, held):
    file = tmp_path / "file"
    file.write_text(held)
    with pytest.raises(rollenv.UsageError, match="record"):
        Gateway(scripted([]), record=file)
    assert file.read_text() == held


def test_a_record_is_a_file_that_no_other_gateway_writes(tmp_path):
    with pytest.raises(rollenv.UsageError, match="file"):
        Gateway(scripted([]), record=tmp_path)
    with pytest.raises(rollenv.UsageError, match="cannot write"):
        gateway_command._writer(tmp_path)
    first = Gateway(scripted([]), record=tmp_path / "calls.jsonl")
    with pytest.raises(rollenv.UsageError, match="another gateway"):
        Gateway(scripted([]), record=tmp_path / "calls.jsonl")
    first.close()
    Gateway(scripted([]), record=tmp_path / "calls.jsonl").close()


def foreign(behave, work, model="named"):
    """Do some work with a gateway before an endpoint that behaves in some way."""
    with ChatServer(behave) as server:
        patience = Patience(retries=0)
        return call_over_http(work, Upstream(Endpoint(server.url, patience=patience), model)), server.requests


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        ("400 Bad Request", "temperature is not supported", 400),
        ("401 Unauthorized", "bad key", 400),
        ("404 Not Found", "no such model", 400),
        ("400 Bad Request", "maximum context length is 9 tokens, the messages have 12 tokens", 400),
        ("500 Internal Server Error", "boom", 500),
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_what_an_endpoint_says_is_passed_on_and_asked_again_only_where_that_helps(path, status, said, expected):
    async def work(gateway, client):
        answer = await post(client, gateway.open(), path, json={**HELLO, "input": "hi", "max_tokens": 5, "tools": []})
        return answer.status_code, answer.json()["error"]["message"], "retry-after" in answer.headers

    (got, words, again), _ = foreign(lambda exchange: exchange.json({"error": {"message": said}}, status), work)
    assert (got, again) == (expected, expected == 500)
    assert said in words


@pytest.mark.parametrize("model", ["", "named"])
def test_an_endpoint_is_asked_for_the_model_that_was_named_or_the_clients(model):
    async def work(gateway, client):
        answer = await post(client, gateway.open())
        return answer.status_code, [one["id"] for one in (await client.get(f"{gateway.url}/v1/models")).json()["data"]]

    (status, models), requests = foreign(lambda exchange: exchange.json(completion("yes")), work, model)
    assert (status, models) == (200, [model] if model else [])
    assert requests[0]["model"] == (model or HELLO["model"])


def test_settings_reach_an_endpoint_and_those_without_an_effect_are_named():
    asked = {
        **HELLO,
        "seed": 3,
        "response_format": {"type": "json_object"},
        "parallel_tool_calls": False,
        "logprobs": True,
    }
    asked["tools"] = [{**HELLO["tools"][0], "function": {**HELLO["tools"][0]["function"], "strict": True}}]

    async def work(gateway, client):
        answer = await post(client, gateway.open(), json=asked)
        return answer.status_code, answer.headers.get("x-rollenv-ignored", "").split(", ")

    (status, ignored), (sent,) = foreign(lambda exchange: exchange.json(completion("yes")), work)
    assert (status, ignored) == (200, ["logprobs"])
    assert {name: sent[name] for name in ("seed", "response_format", "parallel_tool_calls")}.items() <= asked.items()
    assert sent["tools"][0]["function"]["strict"] is True
    _, ignored = call_over_http(work)
    assert ignored == ["seed", "response_format", "parallel_tool_calls", "tools.strict"]


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
def test_an_endpoint_gets_back_what_it_wants_with_its_calls(path, tmp_path):
    """DeepSeek refuses a chat without the thoughts before its calls, and Gemini one without its signatures."""
    signed = {"extra_content": {"google": {"thought_signature": "s"}}}
    calls = [{"id": f"c{i}", "type": "function", "function": {"name": "bash", "arguments": "{}"}} for i in (1, 2)]
    answered = completion("", message={"reasoning_content": "hm", "tool_calls": [{**calls[0], **signed}, calls[1]]})
    chat = {**HELLO, "max_tokens": 9, "tools": [{"name": "bash", "input_schema": {}}] if path == "messages" else [BASH]}

    async def work(gateway, client):
        told = (await post(client, session := gateway.open(), path, json=chat)).json()
        if path == "messages":
            back = [block for block in told["content"] if block["type"] == "tool_use"]
            results = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": b["id"]} for b in back]}]
            said = {"role": "assistant", "content": back}
        else:
            said = {name: told["choices"][0]["message"][name] for name in ("role", "content", "tool_calls")}
            results = [{"role": "tool", "tool_call_id": c["id"], "content": ""} for c in said["tool_calls"]]
        return (await post(client, session, path, json={**chat, "messages": [*HELLO["messages"], said, *results]})).text

    _, (_, again) = foreign(lambda exchange: exchange.json(answered), work)
    (said,) = [message for message in again["messages"] if message["role"] == "assistant"]
    assert said["reasoning_content"] == "hm"
    assert [call.get("extra_content") for call in said["tool_calls"]] == [signed["extra_content"], None]


def test_a_refusal_that_a_client_sends_back_reaches_the_model():
    chat = [*HELLO["messages"], {"role": "assistant", "content": None, "refusal": "I cannot."}, *HELLO["messages"]]

    async def work(gateway, client):
        return (await post(client, gateway.open(), json=body(chat))).status_code

    status, (sent,) = foreign(lambda exchange: exchange.json(completion("yes")), work)
    assert (status, sent["messages"][1]["content"]) == (200, "I cannot.")


def test_what_a_gateway_does_not_read_is_refused_in_words():
    async def work(gateway, client):
        session, packed = gateway.open(), {"content-encoding": "gzip"}
        unknown = await post(client, session, "embeddings")
        compressed = await post(client, session, content=gzip.compress(json.dumps(HELLO).encode()), headers=packed)
        named = await post(client, session, json={**HELLO, " a\r\nb\x00é": 1})
        return unknown, compressed, named

    unknown, compressed, named = call_over_http(work)
    assert (unknown.status_code, compressed.status_code, named.status_code) == (404, 400, 200)
    assert "chat/completions" in unknown.json()["error"]["message"]
    assert "''" not in unknown.json()["error"]["message"], "no model without a name is named"
    assert "content-encoding" in compressed.json()["error"]["message"]
    assert named.headers["x-rollenv-ignored"].startswith("a??b")


def test_a_listed_model_can_be_retrieved():
    async def work(gateway, client):
        return [(await client.get(f"{gateway.url}/v1/models/{name}")).status_code for name in ("org/named", "other")]

    assert foreign(lambda exchange: exchange.json(completion("yes")), work, "org/named")[0] == [200, 404]


def test_late_rewards_reach_the_file_of_chats(tmp_path):
    file = tmp_path / "chats.jsonl"

    async def work(gateway, client):
        gateway.on_finish = gateway_command._writer(file)
        late, again, calls = (gateway.open(name) for name in ("late", "again", "calls"))
        for session in (late, again, calls):
            await post(client, session)
        calls.set_reward(0.5)
        for session in (late, again, calls):
            session.finish(1.0 if session is again else None)
        gateway.on_finish = gateway_command._writer(file)  # as after a restart
        late.set_reward(-0.25)
        again.finish(-1.0)

    call_over_http(work)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["task"]: row["reward"] for row in rows} == {"late": -0.25, "again": -1.0, "calls": 0.5}
    assert len(rows) == 3


@pytest.mark.integration
def test_chats_with_a_foreign_model_are_written_for_supervised_training(guessing_endpoint, tmp_path):
    """The command, a harness's calls in two dialects, and a file of chats."""
    words = ["gateway", "--model", "guesser", "--upstream", guessing_endpoint.url, "--port", "0", "--admin-port", "0"]
    words += ["--chats", str(tmp_path / "chats.jsonl"), "--record", str(tmp_path / "calls.jsonl")]
    code = "from rollenv.cli.main import main; main()"
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True) as process:
        told = "".join(process.stdout.readline() for _ in range(6))
        base, key = re.search(r"OPENAI_BASE_URL=(\S+) OPENAI_API_KEY=(\S+)", told).groups()
        admin, secret = re.search(r"administrator: (\S+), Authorization: Bearer (\S+)", told).groups()
        head = {"Authorization": f"Bearer {key}"}
        chat = [{"role": "user", "content": "Guess a number between 1 and 20."}]
        answered = httpx.post(f"{base}/chat/completions", json=body(chat), headers=head, timeout=60).json()
        said = answered["choices"][0]["message"]
        chat += [said, {"role": "user", "content": "higher"}]
        asked = {"model": "m", "max_tokens": 9, "messages": [{k: m[k] for k in ("role", "content")} for m in chat]}
        assert httpx.post(f"{base}/messages", json=asked, headers=head, timeout=60).status_code == 200
        session = re.search(r"session (\S+):", told)[1]
        httpx.post(
            f"{admin}/sessions/{session}/finish",
            json={"reward": 1},
            headers={"Authorization": f"Bearer {secret}"},
            timeout=60,
        )
        os.kill(process.pid, signal.SIGTERM)
    assert process.returncode == 0
    chats = [json.loads(line) for line in (tmp_path / "chats.jsonl").read_text().splitlines()]
    roles = [[message["role"] for message in chat["messages"]] for chat in chats]
    assert ["user", "assistant", "user", "assistant"] in roles
    assert {chat["reward"] for chat in chats} == {1}
