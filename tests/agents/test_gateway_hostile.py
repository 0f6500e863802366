"""Agents that attack their gateway, clients that vanish, and a gateway that is killed: neighbours do not notice."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import gc
import json
import math
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter

import anthropic
import httpx
import openai
import pytest
import torch
from chat_server import ChatServer
from test_gateway import (  # noqa: F401  # local is a fixture
    BASH,
    CALL,
    HELLO,
    ScriptEngine,
    body,
    call_over_http,
    held,
    local,
    post,
    scripted,
    until,
)

import rollenv
from rollenv.agents.engine_agent import EngineAgent
from rollenv.agents.gateway import http, server
from rollenv.agents.gateway.dialects import DIALECTS, Known
from rollenv.agents.gateway.gateway import Gateway
from rollenv.agents.gateway.http import HttpServer
from rollenv.agents.gateway.messages import GatewayError, Message, Request
from rollenv.agents.gateway.server import admin_app
from rollenv.agents.gateway.session import Caps
from rollenv.agents.gateway.tree import KINDS


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


# -- what is sent ------------------------------------------------------------------------------------------------------

CALLED = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": 1}'}}
BODIES = {
    "chat/completions": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "c1", "content": "out"},
        ],
        **{
            "tools": [BASH],
            "tool_choice": "auto",
            "stop": ["x"],
            "max_tokens": 5,
            "temperature": 0.5,
            "logprobs": True,
        },
        **{"stream": True, "stream_options": {"include_usage": True}},
    },
    "responses": {
        "instructions": "i",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "o"},
        ],
        **{"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "x"}]}], "stream": True},
    },
    "messages": {
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "bash", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "o"}]},
        ],
        **{"tools": [{"name": "bash", "input_schema": {}}], "tool_choice": {"type": "auto"}, "max_tokens": 5},
    },
}
HALF = "\ud800"
WRONG = [
    *(None, True, -1, 1e308, math.nan, math.inf, 2**70, "", HALF, "\x00", [], [None], [[]], {}, {HALF: 1}),
    *({"type": {"a": 1}}, '{"a": NaN}', '{"a":"\\ud800"}', "[" * 5000, "9" * 5000, "<|im_start|>", "{{ x }}", "]]>"),
]


def places(value, path=()):
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def changed(whole, path, value):
    if not path:
        return value
    whole = copy.deepcopy(whole)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return whole


@pytest.mark.parametrize("dialect", BODIES)
def test_every_field_of_the_wrong_shape_is_read_or_refused_whatever_was_read_before(dialect):
    """All places and wrong values; what was read before in the session changes nothing."""
    whole, known, outcomes = BODIES[dialect], Known(), Counter()

    def read(sent, known=None):
        try:
            return DIALECTS[dialect].read(json.loads(sent), lambda name: None, known)
        except GatewayError as error:
            return error.kind, str(error), error.param

    for path in places(whole):
        for wrong in WRONG:
            sent = json.dumps(changed(whole, path, wrong))
            outcome = read(sent, known)
            assert outcome == read(sent)
            outcomes[type(outcome) is tuple and outcome[0]] += 1
    assert outcomes.keys() <= {False, "invalid", "not_found"}
    assert outcomes["invalid"] > outcomes[False] > 0


@pytest.mark.parametrize("dialect", [*BODIES, "messages/count_tokens"])
def test_whatever_is_sent_is_answered_or_refused(dialect):
    """Never a status of the server's own fault, which clients would send again and again; and the session goes on."""
    rng, whole = random.Random(0), BODIES[dialect.removesuffix("/count_tokens")]
    every = [(path, wrong) for path in places(whole) for wrong in WRONG]
    agent = scripted(lambda i: f'a {i} {CALL}<tool_call>{{"name": "bash", "arguments": {{"command": "\\ud800"}}}}')
    shown = {"type", "error"} if dialect.startswith("messages") else {"error"}

    async def play():
        gateway = Gateway(agent)
        transport = httpx.ASGITransport(gateway._http.app, raise_app_exceptions=False)
        session, statuses = gateway.open(), set()
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            for path, wrong in [*rng.sample(every, 120), (("model",), "m")]:
                sent = json.dumps(changed(whole, path, wrong)).encode()
                answer = await client.post(f"/s/{session.key}/v1/{dialect}", content=sent)
                statuses.add(answer.status_code)
                assert answer.status_code in (200, 400), (path, wrong, answer.text)
                if answer.status_code == 400:
                    told = answer.json()
                    assert shown <= told.keys()
                    assert {"type", "message"} <= told["error"].keys()
        assert answer.status_code == 200
        return statuses

    assert asyncio.run(play()) == {200, 400}


@pytest.mark.parametrize("shape", ["gemma", "mistral", "deepseek"])
def test_a_chat_that_the_template_refuses_is_invalid(shape):
    async def work(gateway, client):
        session = gateway.open()
        roles = ["system", "assistant", "tool", "user", "user", "system", "assistant"]
        chat = [{"role": role, "content": "x", "tool_call_id": "none"} for role in roles]
        return [(await post(client, session, json=body(chat[n:]))).status_code for n in range(7)]

    assert set(call_over_http(work, scripted(lambda i: "a", shape))) <= {200, 400}


def test_what_an_agent_reaches_is_only_its_own_calls():
    async def work(gateway, client):
        session, other = gateway.open(), gateway.open()
        admin = HttpServer(admin_app(gateway, "k" * 32), "127.0.0.1", 0)
        await admin.start()
        there = f"http://127.0.0.1:{admin.port}"
        bearer = {"Authorization": f"Bearer {session.key}"}
        guessed = [
            session.id,
            other.id,
            session.key[:-1],
            f"{session.key}0",
            session.key.upper(),
            "%00",
            "%ED%A0%80",
            " ",
        ]
        refused = [
            (await client.post(f"{gateway.url}/s/{key}/v1/chat/completions", json=HELLO)).status_code for key in guessed
        ]
        hidden = [
            (await client.request(method, f"{base}/{path}", json={"value": 1.0}, headers=bearer)).status_code
            for base in (gateway.url, session.base_url, session.anthropic_url)
            for method, path in [("GET", "sessions"), ("GET", "metrics"), ("POST", f"sessions/{other.id}/reward")]
        ]
        closed = [
            (await client.request(method, f"{there}/{path}", headers=headers)).status_code
            for headers in (bearer, {}, {"Authorization": "Bearer x"})
            for method, path in [("GET", "sessions"), ("POST", f"sessions/{session.id}/finish"), ("GET", "metrics")]
        ]
        await admin.stop()
        admin.close()
        return set(refused), set(hidden), set(closed), session.over, gateway.refused_keys

    assert call_over_http(work) == ({401}, {404}, {401}, False, 8)


@pytest.mark.parametrize("head", [b"Content-Length: 1073741824", b"Transfer-Encoding: chunked"])
def test_a_huge_body_is_refused_before_it_is_read(head):
    async def work(gateway, client):
        session, neighbour = gateway.open(), gateway.open()
        reader, writer = await asyncio.open_connection(*gateway.address.split(":"))
        path = f"/s/{session.key}/v1/messages"
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + head + b"\r\n\r\n")
        for _ in range(3):
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        answer = await reader.readline()
        writer.close()
        return answer.split()[1], (await post(client, neighbour)).status_code, session.counts["refused_too_large"]

    assert call_over_http(work, caps=Caps(body=100_000)) == (b"413", 200, 1)


HEAD = "POST /s/{key}/v1/messages HTTP/1.1\r\nHost: x"


@pytest.mark.parametrize("sent", ["", HEAD, HEAD + "\r\nContent-Length: 100000\r\n\r\n"])
def test_a_request_that_does_not_end_is_refused_and_holds_no_slot(monkeypatch, sent):
    """A byte now and then does not keep it alive."""
    monkeypatch.setattr(server, "BODY", 0.2)
    monkeypatch.setattr(http, "HEAD", 0.2)

    async def work(gateway, client):
        session = gateway.open(caps=Caps(parallel=1, waiting=1))
        reader, writer = await asyncio.open_connection(*gateway.address.split(":"))
        answer = asyncio.ensure_future(reader.readline())
        writer.write(sent.format(key=session.key).encode())
        while not answer.done():
            await asyncio.wait([answer], timeout=0.01)
            if sent:
                writer.write(b"x")
        writer.close()
        return (await answer).split()[1], session.reading, (await post(client, session)).status_code

    assert call_over_http(work) == (b"408", 0, 200)


def test_a_body_that_no_context_holds_is_an_overflow_without_a_look_into_it():
    async def work(gateway, client):
        answer = await post(client, gateway.open(), "messages", content=b"[" * 100_000)
        return answer.status_code, answer.json()["error"]["message"].split(":")[0]

    assert call_over_http(work, scripted(["a"], max_context=1000)) == (400, "prompt is too long")


def test_a_crowd_has_to_come_again_and_its_neighbour_does_not():
    agent = held()

    async def work(gateway, client):
        crowd, neighbour = gateway.open(), gateway.open()
        calls = [post(client, crowd) for _ in range(8)]
        await until(lambda: crowd.counts["refused_crowded"] == 3)
        calls.append(post(client, neighbour))
        await until(lambda: agent.engine.running == 3)
        agent.engine.held.set()
        answers = [await call for call in calls]
        again = {answer.headers.get("retry-after") for answer in answers if answer.status_code == 503}
        return sorted(answer.status_code for answer in answers), answers[-1].status_code, again

    statuses, neighbour, again = call_over_http(work, agent, caps=Caps(parallel=2, waiting=3))
    assert (statuses, neighbour, again) == ([200] * 6 + [503] * 3, 200, {"1"})


class Queued(ScriptEngine):
    """Answers four calls at a time, in the order in which they come."""

    def __init__(self, tokenizer):
        super().__init__(tokenizer, lambda i: "a")
        self.places, self.served = asyncio.Semaphore(4), 0

    async def generate(self, prompt, sampling, rng, *, session=-1):
        async with self.places:
            await asyncio.sleep(0)
            self.served += 1
            return await super().generate(prompt, sampling, rng, session=session)


def waits(floods):
    """The answers that others got between a call and its own, of 64 sessions that ask three times."""
    tokenizer = scripted(["a"]).engine.tokenizer
    engine = Queued(tokenizer)

    async def work(gateway, client):
        async def ask(session, times, found):
            for turn in range(times):
                before = engine.served
                answer = await post(client, session, json=body([{"role": "user", "content": f"{turn}"}]))
                assert answer.status_code == 200
                if turn:  # at first all come at once
                    found.append(engine.served - before)

        found = []
        flood, *others = [gateway.open() for _ in range(64)]
        flooding = [asyncio.create_task(ask(flood, 10_000, [])) for _ in range(floods)]
        await asyncio.gather(*(ask(session, 3, found) for session in others))
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
        return found

    return call_over_http(work, EngineAgent(engine, tokenizer), caps=Caps(calls=100_000))


@pytest.mark.integration
def test_nobody_waits_twice_as_long_as_others_even_beside_a_flood():
    alike, beside = waits(1), waits(Caps().parallel)
    assert max(alike) <= 2 * statistics.median(alike)
    assert max(beside) <= 2 * statistics.median(beside)
    assert statistics.median(beside) < 2 * statistics.median(alike)


@pytest.mark.integration
def test_calls_without_end_take_no_memory():
    """Beyond its cap a session is refused before its request is read."""
    used = []

    async def work(gateway, client):
        session = gateway.open(caps=Caps(calls=20))
        statuses = Counter()
        for number in range(500):
            if number in (200, 499):
                gc.collect()
                used.append(tracemalloc.get_traced_memory()[0])
            chat = body([{"role": "user", "content": f"{number} " * 300}])
            statuses[(await post(client, session, json=chat)).status_code] += 1
        return statuses, len(session.tree.nodes), session.counts["refused_calls"]

    tracemalloc.start()
    try:
        assert call_over_http(work) == ({200: 20, 400: 480}, 20, 480)
    finally:
        tracemalloc.stop()
    assert used[1] - used[0] < 100_000


def test_of_refused_calls_only_their_number_is_kept():
    async def work(gateway, client):
        session = gateway.open()
        chats = [body([{"role": "user", "content": f"{n} " * 300}]) for n in range(20)]
        statuses = {(await post(client, session, json=chat)).status_code for chat in chats}
        return statuses, session.counts["refused_overflow"], len(session.known_in), session.kept_bytes

    assert call_over_http(work, scripted([], max_context=100)) == ({400}, 20, 0, 0)


def test_endless_compaction_ends_when_enough_is_remembered():
    async def work(gateway, client):
        session = gateway.open()
        chats = [body([{"role": "user", "content": f"{n} " * 300}]) for n in range(20)]
        statuses = [(await post(client, session, json=chat)).status_code for chat in chats]
        return statuses == sorted(statuses), set(statuses), session.counts["refused_bytes"] > 0

    assert call_over_http(work, caps=Caps(kept=200_000)) == (True, {200, 400}, True)


@pytest.mark.parametrize("reward", [math.nan, math.inf, True, 10**400, "1", None])
def test_a_reward_is_a_finite_number(reward):
    session = Gateway(scripted(["a"])).open()
    with pytest.raises(rollenv.UsageError):
        session.set_reward(reward)
    if reward is not None:
        with pytest.raises(rollenv.UsageError):
            session.finish(reward)
        assert not session.over


# -- clients that vanish -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_between_signs_of_life_frees_its_slot(monkeypatch, stream):
    monkeypatch.setattr(server, "PATIENCE", 0.01)
    monkeypatch.setattr(server, "PULSE", 0.01)
    agent = held()

    async def work(gateway, client):
        session = gateway.open()
        async with client.stream(
            "POST", f"{session.base_url}/messages", json={**HELLO, "tools": [], "stream": stream}
        ) as answer:
            await anext(answer.aiter_raw())
        await until(lambda: not agent.engine.running)
        agent.engine.held.set()
        assert (await post(client, session)).status_code == 200
        return [node.delivered for node in session.tree.nodes], session.counts["cancelled"]

    assert call_over_http(work, agent) == ([True], 1)


@pytest.mark.integration
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_is_killed_frees_its_slot(monkeypatch, stream):
    monkeypatch.setattr(server, "PATIENCE", 0.01)
    monkeypatch.setattr(server, "PULSE", 0.01)
    agent = held()

    async def work(gateway, client):
        session = gateway.open(caps=Caps(parallel=1))
        data = json.dumps({**HELLO, "stream": stream})
        words = [sys.executable, "-c", CLIENT, f"{session.base_url}/chat/completions", data]
        process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        assert await process.stdout.read(1)  # the stream has begun
        process.kill()
        await process.wait()
        await until(lambda: not agent.engine.running)
        assert not session.tree.nodes
        agent.engine.held.set()
        assert (await post(client, session)).status_code == 200
        return [node.delivered for node in session.tree.nodes], session.counts["cancelled"]

    assert call_over_http(work, agent) == ([True], 1)


CLIENT = """
import sys, urllib.request
asked = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(asked) as answer:
    while True:
        sys.stdout.buffer.write(answer.read(1))
        sys.stdout.buffer.flush()
"""


def test_an_answer_whose_client_left_while_it_was_recorded_is_sent_to_the_next_that_asks(tmp_path):
    agent = scripted(lambda i: f"answer {i}")

    async def work(gateway, client):
        session, synced = gateway.open(), asyncio.Event()
        gateway._record.sync = synced.wait
        call = asyncio.ensure_future(session.call(Request((Message("user", "hi"),)), "key"))
        await until(lambda: session.tree.nodes)
        call.cancel()
        await asyncio.wait([call])
        synced.set()
        node = await session.call(Request((Message("user", "hi"),)), "key")
        return node is session.tree.nodes[0], len(session.tree.nodes), session.counts["sent_again"]

    assert call_over_http(work, agent, record=tmp_path / "record") == (True, 1, 1)


def test_calls_of_a_gateway_that_stops_are_told_to_come_again():
    agent = held()

    async def work(gateway, client):
        session = gateway.open()
        call = asyncio.ensure_future(session.call(Request((Message("user", "hi"),))))
        await until(lambda: agent.engine.running)
        session.cancel()
        with pytest.raises(GatewayError) as error:
            await call
        return error.value.kind

    assert call_over_http(work, agent) == "overloaded"


@pytest.mark.parametrize("answers", [0, 1])
def test_another_thread_seals_the_tree_while_calls_run(answers):
    """No answer is added behind the end, whatever moment it comes in."""
    agent = scripted(lambda i: f"answer {i}")
    with Gateway(agent) as gateway:
        agent.engine.held = asyncio.Event()
        session = gateway.open()
        url = f"{session.base_url}/chat/completions"
        callers = [threading.Thread(target=httpx.post, args=(url,), kwargs={"json": HELLO}) for _ in range(3)]
        for caller in callers:
            caller.start()
        gateway.run(until(lambda: agent.engine.running == 3))
        if answers:
            gateway._loop.call_soon_threadsafe(agent.engine.held.set)
        session.finish(reward=1.0)
        before = list(session.tree.nodes)
        for caller in callers:
            caller.join()
        assert (session.tree.nodes, agent.engine.running) == (before, 0)


# -- a record, and a gateway that dies ---------------------------------------------------------------------------------


def test_a_full_disk_refuses_calls_and_leaves_a_whole_record(tmp_path):
    file, agent = tmp_path / "record", scripted(lambda i: f"answer {i} " * 20)

    async def work(gateway, client):
        session = gateway.open()
        first = await post(client, session)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 100, hard))
        try:
            full = await post(client, session)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return [first.status_code, full.status_code, (await post(client, session)).status_code], session.tree.nodes

    statuses, nodes = call_over_http(work, agent, record=file)
    assert statuses == [200, 503, 200]
    restored = Gateway(agent, record=file)
    (session,) = restored.sessions.values()
    assert session.tree.nodes == nodes
    restored.close()


def test_a_gateway_that_comes_back_knows_what_is_over(tmp_path):
    file, ended = tmp_path / "record", []
    first = Gateway(scripted(["a"]), record=file)
    forgotten, over, running = (first.open(name) for name in ("forgotten", "over", "running"))
    over.finish(1.0)
    first.forget(forgotten)
    first.close()
    again = Gateway(scripted(["a"]), record=file)
    again.on_finish = ended.append
    assert [session.task for session in again.sessions.values()] == ["over", "running"]
    assert again.was_open(forgotten.key)
    again.find(running.key).finish(0.5)
    again.find(running.key).finish(0.7)
    assert [(session.task, session.reward) for session in ended] == [("running", 0.7)]
    again.close()


@pytest.mark.integration
def test_calls_go_on_over_the_death_of_the_gateway(tmp_path):
    """``kill -9`` in the middle of calls: clients ask again, and the same tree goes on at the same port."""
    file, port, admin = tmp_path / "record", free_port(), free_port()
    words = [sys.executable, "-m", "rollenv", "gateway", "--model", "m", "--record", str(file)]
    environment = {**os.environ, "ROLLENV_GATEWAY_KEY": "a" * 32, "PYTHONUNBUFFERED": "1"}

    def started(upstream):
        ports = ["--port", str(port), "--admin-port", str(admin), "--upstream", upstream]
        process = subprocess.Popen([*words, *ports], env=environment, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if "ANTHROPIC_BASE_URL" in line:
                return process
        raise AssertionError("the gateway ended")

    def play(number, session, opened):
        client = openai.OpenAI(base_url=session["base_url"], api_key="x", max_retries=20, timeout=60)
        chat = [{"role": "user", "content": f"line {number}"}]
        for turn in range(6):
            said = client.chat.completions.create(model="m", messages=chat).choices[0].message.content
            chat += [{"role": "assistant", "content": said}, {"role": "user", "content": f"turn {turn}"}]
            opened.release()

    async def answer(exchange):
        message = {"role": "assistant", "content": f"answer to {len(exchange.body['messages'])}"}
        await exchange.json({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {}})

    with ChatServer(answer) as upstream:
        gateway = started(upstream.url)
        there, bearer = f"http://127.0.0.1:{admin}", {"Authorization": f"Bearer {'a' * 32}"}
        session = httpx.post(f"{there}/sessions", headers=bearer, json={"task": "t"}).json()
        answered = threading.Semaphore(0)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            players = [pool.submit(play, number, session, answered) for number in range(4)]
            for _ in range(2):
                for _ in range(5):
                    answered.acquire()
                gateway.kill()
                gateway.wait()
                gateway = started(upstream.url)
            for player in players:
                player.result()
        shown = httpx.get(f"{there}/sessions/{session['id']}", headers=bearer).json()
        gateway.terminate()
        gateway.wait()
    lines = {node["context"][0]["text"] for node in shown["nodes"] if node["parent"] is None}
    assert lines == {f"line {number}" for number in range(4)}
    assert set(shown["matches"]) == {"exact"}
    taken = [node for node in shown["nodes"] if node["kind"] not in ("superseded", "cancelled")]
    assert len(taken) == 24


@pytest.mark.integration
def test_a_long_session_takes_less_than_two_megabytes():
    """100 calls with prompts of more than 10,000 tokens."""
    agent = scripted(lambda i: f"answer {i}", max_context=100_000)

    async def play():
        session = Gateway(agent, record=None).open()
        chat = (Message("user", "a text of the task " * 1200),)
        for _ in range(100):
            node = await session.call(Request(chat))
            agent.engine.prompts = [None]
            chat = (*chat, node.answer.message, Message("user", "some output " * 5))
        return session

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    session = asyncio.run(play())
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert session.tree.length(session.tree.nodes[-1]) > 10_000
    assert used < 2_000_000


def test_lines_that_left_the_memory_go_on_from_their_tokens(monkeypatch):
    """More lines at the same time than are kept ready, as many sub-agents make them."""
    monkeypatch.setattr("rollenv.agents.gateway.policy._KEPT", 2)
    agent = scripted(lambda i: f"answer {i}")

    async def play():
        session = Gateway(agent).open()
        chats = [(Message("user", f"line {n}"),) for n in range(5)]
        for _ in range(3):
            for n, chat in enumerate(chats):
                session.sent(node := await session.call(Request(chat)))
                chats[n] = (*chat, node.answer.message, Message("user", "on"))
        return session

    session = asyncio.run(play())
    assert [node.continues for node in session.tree.nodes] == [False] * 5 + [True] * 10
    assert [session.tree.prompt_ids(node) for node in session.tree.nodes] == agent.engine.prompts
    assert len(session.samples(KINDS)) == 5


# -- new weights -------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_new_weights_in_the_middle_of_32_calls_are_no_error(local):  # noqa: F811
    """Calls wait meanwhile, answers go on from their tokens, and each token has the version that drew it."""

    weights = {name: weight.clone() for name, weight in local.model.state_dict().items()}

    async def work(gateway, client):
        drawn, sessions = local.engine.stats.drawn, [gateway.open(seed=n) for n in range(32)]
        calls = [post(client, session) for session in sessions]
        await until(lambda: local.engine.stats.drawn >= drawn + 64)
        await local.engine.suspend()
        drawn = local.engine.stats.drawn
        await local.engine.update_weights((name, 1.1 * weight) for name, weight in weights.items())
        await asyncio.sleep(0)
        assert local.engine.stats.drawn == drawn
        await local.engine.resume()
        answers = [await call for call in calls]
        return {answer.status_code for answer in answers}, [session.tree.nodes[0] for session in sessions]

    old = local.engine.version
    statuses, nodes = call_over_http(work, local)
    assert statuses == {200}
    assert any(set(node.versions) == {old, old + 1} for node in nodes)
    assert all(list(node.versions) == sorted(node.versions) for node in nodes)
    for node in nodes[::6]:
        ids = torch.tensor([(*node.tail, *node.response_ids)])
        for version, factor in ((old, 1.0), (old + 1, 1.1)):
            local.model.load_state_dict({name: factor * weight for name, weight in weights.items()})
            logprobs = local.model(ids).logits[0].log_softmax(-1)
            for at, (token, logprob) in enumerate(zip(node.response_ids, node.logprobs, strict=True)):
                if node.versions[at] == version:
                    expected = logprobs[len(node.tail) + at - 1, token].item()
                    assert math.isclose(expected, logprob, abs_tol=1e-4)


VENDORS = ("chat", "responses", "messages")


async def play_with_sdks(session, number, turns):
    """Play with the vendors' clients, streamed and not in turn; give back the way in which each answer came."""
    settings = {"api_key": session.key, "max_retries": 0, "timeout": 300}
    vendor = openai.AsyncOpenAI(base_url=session.base_url, **settings)
    anthropics = anthropic.AsyncAnthropic(base_url=session.anthropic_url, **settings)
    chat = [{"role": "user", "content": f"Hello {number}"}]
    for turn in range(turns):
        streamed = (turn + number) % 2 == 0
        match VENDORS[number % 3]:
            case "chat" if streamed:
                stream = await vendor.chat.completions.create(model="m", messages=chat, stream=True)
                said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
            case "chat":
                said = (await vendor.chat.completions.create(model="m", messages=chat)).choices[0].message.content
            case "responses" if streamed:
                stream = await vendor.responses.create(model="m", input=chat, stream=True)
                said = "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])
            case "responses":
                said = (await vendor.responses.create(model="m", input=chat)).output_text
            case _ if streamed:
                async with anthropics.messages.stream(model="m", messages=chat, max_tokens=50) as stream:
                    said = await stream.get_final_text()
            case _:
                said = (await anthropics.messages.create(model="m", messages=chat, max_tokens=50)).content[0].text
        chat += [{"role": "assistant", "content": said}, {"role": "user", "content": f"and {turn}"}]
    await vendor.close()
    await anthropics.close()


@pytest.mark.integration
def test_a_thousand_calls_are_recorded_as_they_were_drawn(local):  # noqa: F811
    """50 sessions with the vendors' own clients in three dialects, streamed and not, at the same time."""
    drawn, generate = [], local.engine.generate

    async def spy(prompt, sampling, rng, *, session=-1):
        response = await generate(prompt, sampling, rng, session=session)
        drawn.append((prompt, tuple(response.ids), tuple(response.logprobs)))
        return response

    async def play():
        async with Gateway(local) as gateway:
            sessions = [gateway.open(seed=number) for number in range(50)]
            await asyncio.gather(*(play_with_sdks(session, number, 20) for number, session in enumerate(sessions)))
            return sessions

    local.engine.generate = spy
    try:
        sessions = asyncio.run(play())
    finally:
        del local.engine.generate
    trees = [session.tree for session in sessions]
    recorded = [(tree.prompt_ids(n), n.response_ids, n.logprobs) for tree in trees for n in tree.nodes]
    assert len(recorded) == 1000
    assert sorted(recorded) == sorted(drawn)
    matches = sum((tree.matches for tree in trees), Counter())
    print("matches:", dict(matches), "continued:", sum(node.continues for tree in trees for node in tree.nodes))
    assert matches.total() == 50 * sum(range(20))
    assert matches["unknown"] == 0
    worst = 0.0
    for session in sessions:
        for sample in session.samples():
            with torch.no_grad():
                logits = local.model(torch.tensor([sample.ids])).logits[0].log_softmax(-1)
            ours = logits[:-1].gather(1, torch.tensor(sample.ids[1:])[:, None])[:, 0] - torch.tensor(
                sample.logprobs[1:]
            )
            worst = max(worst, ours[torch.tensor(sample.mask[1:])].abs().max().item())
    print("worst difference of a log-probability:", worst)
    assert worst < 1e-4
