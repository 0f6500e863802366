"""Agents that attack their gateway, clients that vanish, and a disk that is full: neighbours do not notice."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import random
import resource
import threading
from collections import Counter

import httpx
import pytest
from gateway_calls import BASH, CALL, HELLO, body, call_over_http, held, post, scripted, until

import rollenv
from rollenv.agents.gateway import server
from rollenv.agents.gateway.dialects import Known, dialects
from rollenv.agents.gateway.gateway import Gateway
from rollenv.agents.gateway.mcp import Tools
from rollenv.agents.gateway.messages import GatewayError, Message, ModelRequest
from rollenv.agents.gateway.server import admin_app
from rollenv.agents.gateway.session import Caps
from rollenv.agents.gateway.tree import KINDS
from rollenv.core import http_server
from rollenv.core.http_server import HttpServer

# -- what is sent ------------------------------------------------------------------------------------------------------

CALLED = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": 1}'}}
BODIES = {
    "chat/completions": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "c1", "content": "out"},
        ],
        **{"tools": [BASH], "tool_choice": "auto", "stop": ["x"], "max_tokens": 5},
        **{"temperature": 0.5, "logprobs": True},
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


@pytest.mark.combinations
@pytest.mark.parametrize("dialect", BODIES)
def test_every_field_of_the_wrong_shape_is_read_or_refused_whatever_was_read_before(dialect):
    """All places and wrong values; what was read before in the session changes nothing."""
    whole, known, outcomes = BODIES[dialect], Known(), Counter()
    every = {one.paths[0]: one for one in dialects().values()}

    def read(sent, known=None):
        try:
            return every[dialect].read(json.loads(sent), lambda name: None, known)
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


@pytest.mark.parametrize("wrong", WRONG)
def test_whatever_is_sent_to_the_tools_is_answered_or_refused(wrong):
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "step", "arguments": {"action": "a"}}}
    opens = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}

    async def work(gateway, client):
        session = gateway.open()
        session.tools = Tools()
        for whole in (call, opens):
            for path in places(whole):
                sending = asyncio.ensure_future(
                    client.post(f"{session.anthropic_url}/mcp", content=json.dumps(changed(whole, path, wrong)))
                )
                acting = asyncio.ensure_future(session.tools.next_action())
                await asyncio.wait((sending, acting), return_when=asyncio.FIRST_COMPLETED)
                if acting.done():
                    session.tools.show("seen")
                acting.cancel()
                assert (await sending).status_code in (200, 202, 400), path

    call_over_http(work)


def test_an_action_that_waits_is_told_that_the_episode_is_over():
    step = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "step", "arguments": {"action": "a"}}}

    async def work(gateway, client):
        session = gateway.open()
        session.tools = Tools()
        waiting = [asyncio.ensure_future(client.post(f"{session.anthropic_url}/mcp", json=step)) for _ in range(3)]
        await session.tools.next_action()
        session.tools.close()
        return [(await one).json()["error"]["message"] for one in waiting]

    assert call_over_http(work) == ["the episode is over"] * 3


@pytest.mark.combinations
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
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=60) as client:
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
        near = [session.key[:-1], f"{session.key}0", session.key.upper()]
        guessed = [session.id, other.id, *near, "%00", "%ED%A0%80", " "]
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
    monkeypatch.setattr(http_server, "HEAD", 0.2)

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


def long_chats(agent=None, **settings):
    """Twenty chats of 300 words in one session: their statuses, and the session."""

    async def work(gateway, client):
        session = gateway.open()
        chats = [body([{"role": "user", "content": f"{n} " * 300}]) for n in range(20)]
        return [(await post(client, session, json=chat)).status_code for chat in chats], session

    return call_over_http(work, agent, **settings)


def test_of_refused_calls_only_their_number_is_kept():
    statuses, session = long_chats(scripted([], max_context=100))
    assert statuses == [400] * 20
    assert (session.counts["refused_overflow"], len(session.known_in), session.kept_bytes) == (20, 0, 0)


def test_endless_compaction_ends_when_enough_is_remembered():
    statuses, session = long_chats(caps=Caps(kept=200_000))
    assert (statuses, set(statuses)) == (sorted(statuses), {200, 400})
    assert session.counts["refused_bytes"] > 0


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


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_a_call_that_fails_after_its_status_is_no_answer_and_its_retry_hears_why(monkeypatch, path):
    monkeypatch.setattr(server, "PATIENCE", 0.01)
    monkeypatch.setattr(server, "PULSE", 0.01)
    agent = scripted(["never said"])

    async def work(gateway, client):
        session, begun = gateway.open(), asyncio.Event()

        async def refuse(*args):
            await begun.wait()
            raise GatewayError("invalid", "the filter said no")

        gateway.model.draw = refuse
        asked = {"input": "hi"} if path == "responses" else {"messages": HELLO["messages"], "max_tokens": 9}
        got = []
        for stream in (False, True):
            begun.clear()
            async with client.stream("POST", f"{session.base_url}/{path}", json={**asked, "stream": stream}) as answer:
                parts = answer.aiter_raw()
                await anext(parts)  # a sign of life: the status is known
                begun.set()
                try:
                    got.append(b"".join([part async for part in parts]))
                except httpx.RemoteProtocolError:
                    got.append("cut off")
        again = await client.post(f"{session.base_url}/{path}", json={**asked, "stream": False})
        return got, again.status_code, again.text

    (cut, streamed), status, text = call_over_http(work, agent)
    assert cut == "cut off"
    assert b"the filter said no" in streamed
    assert status == 400
    assert "the filter said no" in text


def test_an_answer_whose_client_left_while_it_was_recorded_is_sent_to_the_next_that_asks(tmp_path):
    agent = scripted(lambda i: f"answer {i}")

    async def work(gateway, client):
        session, synced = gateway.open(), asyncio.Event()
        gateway._record.sync = synced.wait
        call = asyncio.ensure_future(session.call(ModelRequest((Message("user", "hi"),)), "key"))
        await until(lambda: session.tree.nodes)
        call.cancel()
        await asyncio.wait([call])
        synced.set()
        node = await session.call(ModelRequest((Message("user", "hi"),)), "key")
        return node is session.tree.nodes[0], len(session.tree.nodes), session.counts["sent_again"]

    assert call_over_http(work, agent, record=tmp_path / "record") == (True, 1, 1)


def test_calls_of_a_gateway_that_stops_are_told_to_come_again():
    agent = held()

    async def work(gateway, client):
        session = gateway.open()
        call = asyncio.ensure_future(session.call(ModelRequest((Message("user", "hi"),))))
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
            gateway.run(until(lambda: agent.engine.held.set() is None))
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
    assert [(session.task, session.reward) for session in ended] == [("running", 0.7)] * 2
    again.close()


def test_lines_that_left_the_memory_go_on_from_their_tokens(monkeypatch):
    """More lines at the same time than are kept ready, as many sub-agents make them."""
    monkeypatch.setattr("rollenv.agents.gateway.policy._KEPT", 2)
    agent = scripted(lambda i: f"answer {i}")

    async def play():
        session = Gateway(agent).open()
        chats = [(Message("user", f"line {n}"),) for n in range(5)]
        for _ in range(3):
            for n, chat in enumerate(chats):
                session.sent(node := await session.call(ModelRequest(chat)))
                chats[n] = (*chat, node.answer.message, Message("user", "on"))
        return session

    session = asyncio.run(play())
    assert [node.continues for node in session.tree.nodes] == [False] * 5 + [True] * 10
    assert [session.tree.prompt_ids(node) for node in session.tree.nodes] == agent.engine.prompts
    assert len(session.samples(KINDS)) == 5
