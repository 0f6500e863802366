"""Programs that call the model by themselves: the tokens of their calls are those that were drawn."""

from __future__ import annotations

import asyncio
import json
import math
import random

import httpx
import pytest
import torch
from chat_server import ChatServer, completion
from chat_templates import SHAPES, tokenizer_for
from gateway_calls import (
    BASH,
    CALL,
    HELLO,
    ScriptEngine,
    body,
    call_over_http,
    held,
    post,
    scripted,
    tiny_agent,
    until,
)

import rollenv
from rollenv.agents.chat.endpoint import Endpoint
from rollenv.agents.engine_agent import EngineAgent
from rollenv.agents.engines.base import Sampling
from rollenv.agents.gateway.endpoint import Upstream
from rollenv.agents.gateway.gateway import Gateway
from rollenv.agents.gateway.messages import GatewayError, Message, ModelRequest
from rollenv.agents.gateway.session import Caps


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_prompts_go_on_from_the_tokens_before(shape):
    """The prompt of each call begins with the last one and its answer, in every template that keeps its history."""
    tokenizer = tokenizer_for(shape)
    thought = "</think>" if shape.name == "deepseek" else ""  # its template opens one
    engine = ScriptEngine(tokenizer, lambda i: f"{thought}answer {i} {CALL}")
    agent = EngineAgent(engine, tokenizer, sampling=Sampling(max_new_tokens=200))

    async def play():
        gateway = Gateway(agent)
        session = gateway.open("a task")
        messages = [Message("system", "Be good."), Message("user", "Say hi.")]
        for number in range(4):
            node = await session.call(ModelRequest(tuple(messages), tools=(BASH,)))
            session.sent(node)
            said = node.answer.message
            assert [call.name for call in said.calls] == ["bash"]
            assert json.loads(said.calls[0].arguments) == {"command": "ls"}
            messages += [said, Message("tool", f"file{number}", call_id=said.calls[0].id)]
        return session

    session = asyncio.run(play())
    whole = [session.tree.prompt_ids(node) for node in session.tree.nodes]
    assert whole == engine.prompts
    assert session.tree.matches == {"exact": 6}
    for before, node in zip(session.tree.nodes, session.tree.nodes[1:], strict=False):
        history = session.tree.prompt_ids(before) + before.response_ids
        assert node.continues == (session.tree.prompt_ids(node)[: len(history)] == history)
        assert node.continues or shape.rewrites or not shape.tool_role
    (first, *others) = session.samples()
    assert not others or shape.rewrites or not shape.tool_role
    assert sum(map(sum, (sample.mask for sample in [first, *others]))) == session.drawn_tokens


async def one_of_each(client, session, number, rng):
    """Call in one of the dialects, streamed or not; what an SDK would send back."""
    stream, url, key = rng.random() < 0.5, session.base_url, {"Authorization": f"Bearer {session.key}"}
    dialect = number % 3
    turns = [("user", f"Hello {number}")]
    for turn in range(4):
        if dialect == 0:
            sent = body([{"role": role, "content": text} for role, text in turns], stream=stream)
            path = "chat/completions"
        elif dialect == 1:
            path = "responses"
            sent = {"model": "m", "input": [{"role": role, "content": text} for role, text in turns], "stream": stream}
        else:
            path = "messages"
            sent = {"model": "m", "max_tokens": 100, "stream": stream}
            sent["messages"] = [{"role": role, "content": text} for role, text in turns]
        answered = await client.post(f"{url}/{path}", json=sent, headers=key)
        assert answered.status_code == 200, answered.text
        turns += [("assistant", session.tree.nodes[-1].answer.text), ("user", f"and {turn}")]
        stream = not stream


def test_tokens_recorded_are_those_drawn_in_three_dialects():
    local = tiny_agent()
    drawn = []
    generate = local.engine.generate

    async def spy(prompt, sampling, rng, *, session=-1):
        response = await generate(prompt, sampling, rng, session=session)
        drawn.append((prompt, tuple(response.ids), tuple(response.logprobs)))
        return response

    local.engine.generate = spy

    async def play():
        async with Gateway(local) as gateway, httpx.AsyncClient(timeout=120) as client:
            sessions = [gateway.open(f"task {n}", seed=n) for n in range(24)]
            await asyncio.gather(
                *(one_of_each(client, session, n, random.Random(n)) for n, session in enumerate(sessions))
            )
            return sessions

    sessions = asyncio.run(play())
    recorded = [
        (session.tree.prompt_ids(node), node.response_ids, node.logprobs)
        for session in sessions
        for node in session.tree.nodes
    ]
    assert sorted(recorded) == sorted(drawn)
    assert len(recorded) == 96
    for session in sessions[::5]:
        for sample in session.samples():
            logits = local.model(torch.tensor([sample.ids])).logits[0].log_softmax(-1)
            for at in range(1, len(sample.ids)):
                if sample.mask[at]:
                    assert math.isclose(logits[at - 1, sample.ids[at]].item(), sample.logprobs[at], abs_tol=1e-4)


def test_a_key_in_a_header_or_the_path_finds_its_session():
    async def work(gateway, client):
        session = gateway.open()
        url = gateway.url
        keys = [{"Authorization": f"Bearer {session.key}"}, {"x-api-key": session.key}]
        wrong = {"Authorization": "Bearer rk-guessed"}
        return [
            (await client.post(f"{base}/chat/completions", json=HELLO, headers=headers)).status_code
            for base in (f"{url}/v1", url)
            for headers in (*keys, wrong, {})
        ] + [(await client.post(f"{session.base_url}/chat/completions", json=HELLO, headers=wrong)).status_code]

    assert call_over_http(work) == [200, 200, 401, 401, 200, 200, 401, 401, 200]


def test_after_the_end_everything_is_refused_with_410():
    async def work(gateway, client):
        session, other = gateway.open(), gateway.open()
        session.finish(1.0)
        gateway.forget(other)
        answers = [
            await client.post(f"{s.base_url}/{path}", json=HELLO)
            for s in (session, other)
            for path in ("messages", "responses")
        ]
        return [answer.status_code for answer in answers], session.reward

    assert call_over_http(work) == ([410] * 4, 1.0)


def test_the_end_cancels_what_runs():
    agent = held(["never"])

    async def work(gateway, client):
        session = gateway.open()
        call = post(client, session)
        await until(lambda: agent.engine.running)
        session.finish()
        return (await call).status_code, agent.engine.running, len(session.tree.nodes)

    assert call_over_http(work, agent) == (410, 0, 0)


def test_a_client_that_goes_away_frees_its_slot():
    agent = held(["never"])

    async def work(gateway, client):
        session = gateway.open()
        call = post(client, session)
        await until(lambda: agent.engine.running)
        call.cancel()
        await until(lambda: not agent.engine.running)
        return session.counts["cancelled"], session.tree.nodes

    assert call_over_http(work, agent) == (1, [])


def test_a_marked_retry_joins_the_call_that_runs_and_equal_bodies_stay_two():
    agent = held()

    async def work(gateway, client):
        session = gateway.open()
        calls = [post(client, session)]
        await until(lambda: agent.engine.running)
        calls.append(post(client, session, headers={"x-stainless-retry-count": "1"}))
        await until(lambda: session.counts["coalesced"])
        calls.append(post(client, session))
        await until(lambda: agent.engine.running == 2)
        agent.engine.held.set()
        texts = [(await call).json()["choices"][0]["message"]["content"] for call in calls]
        return texts, len(session.tree.nodes)

    (texts, nodes) = call_over_http(work, agent)
    assert texts[0] == texts[1] != texts[2]
    assert nodes == 2


def test_caps_are_of_each_session():
    async def work(gateway, client):
        full, other = gateway.open(), gateway.open()
        statuses = [
            (await client.post(f"{session.base_url}/chat/completions", json=HELLO)).status_code
            for session in (full, full, full, other)
        ]
        large = await client.post(f"{other.base_url}/messages", content=b"x" * 2000)
        return statuses, full.counts["refused_calls"], large.status_code

    assert call_over_http(work, caps=Caps(calls=2, body=1000)) == ([200, 200, 400, 200], 1, 413)


def test_a_prompt_without_room_is_refused_in_each_dialects_words():
    async def work(gateway, client):
        session = gateway.open()
        chat = await client.post(f"{session.base_url}/chat/completions", json=HELLO)
        messages = await client.post(f"{session.base_url}/messages", json={**HELLO, "max_tokens": 5, "tools": []})
        return chat.status_code, chat.json()["error"]["code"], messages.status_code, messages.json()["error"]["message"]

    chat, code, status, words = call_over_http(work, scripted(["a"], max_context=5))
    assert (chat, code, status) == (400, "context_length_exceeded", 400)
    assert words.startswith("prompt is too long: ")
    assert words.endswith(" maximum")


def test_a_record_survives_the_gateway(tmp_path):
    file = tmp_path / "calls.jsonl"
    chat = [{"role": "user", "content": "hi"}]

    async def first(gateway, client):
        session = gateway.open("a task")
        answer = await client.post(f"{session.base_url}/chat/completions", json=body(chat))
        session.set_reward(0.5)
        return session, answer.json()["choices"][0]["message"]

    session, said = call_over_http(first, record=file)
    with open(file, "ab") as cut:
        cut.write(b'{"session":"a","event":"call","no')
    chat += [said, {"role": "user", "content": "more"}]

    async def second(gateway, client):
        answer = await client.post(f"{gateway.url}/s/{session.key}/v1/chat/completions", json=body(chat))
        assert answer.status_code == 200
        return gateway.find(session.key)

    again = call_over_http(second, scripted(["x", "y"]), record=file)
    assert again.tree.nodes[0] == session.tree.nodes[0]
    assert (again.tree.nodes[1].parent, again.tree.nodes[1].continues, again.tree.nodes[0].reward) == (0, True, 0.5)


BAD = '{"command": "echo un'  # neither the string nor the object is closed


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        (f'<tool_call>{{"name": "bash", "arguments": {BAD}', BAD),
        (f'<tool_call>\n{{"name": "bash", "arguments": {BAD}\n</tool_call>', BAD),
        (f'Look: <tool_call>{{"name": "bash", "arguments": {BAD}}}}}</tool_call>', BAD + "}"),
        ('<tool_call>{"name": "bash", "arguments": {"command": \'{a}\'}}</tool_call>', "{\"command\": '{a}'}"),
        (f'<tool_call>\n```json\n{{"name": "bash", "arguments": {BAD}\n```\n</tool_call>', BAD),
        ('<tool_call>[{"name": "bash", "arguments": {"command": [1;]}}]</tool_call>', '{"command": [1;]}'),
        (f'<TOOLCALL>[{{"name": "bash", "arguments": {BAD}</TOOLCALL>', BAD),
        (f'<|tool_call|>{{"name": "bash", "arguments": {BAD}<|/tool_call|> and on', BAD),
        ('<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"echo un"}</tool_call>', BAD),
        ('<tool_call>{"name": "bash", "arguments": [1, 2]}</tool_call>', "[1, 2]"),
        (
            '<tool_call>{"name": "bash", "arguments": {"command": "ls"}, "b": 1}</tool_call>',
            '{"command": "ls"}, "b": 1',
        ),
        ('<tool_call>{"name": "bash", "arguments": "{}", "b": 1}</tool_call>', '"{}", "b": 1'),
        ('<tool_call>{"name": "bash", "arguments": {"command": "a</b> }} </tool_call>', '{"command": "a</b> }'),
    ],
)
def test_arguments_that_are_no_json_are_passed_on_as_written(written, arguments):
    agent = scripted([written])

    async def play():
        session = Gateway(agent).open()
        return await session.call(ModelRequest((Message("user", "hi"),), tools=(BASH,)))

    answer = asyncio.run(play()).answer
    assert [(call.name, call.arguments) for call in answer.calls] == [("bash", arguments)]


OTHER = {"type": "function", "function": {"name": "stop", "description": "", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("choice", "tools", "says", "calls"),
    [
        ("required", (BASH,), ' {"command": "ls"}}</tool_call>', [("bash", '{"command": "ls"}')]),
        ("bash", (OTHER, BASH), ' {"command": "ls"}}</tool_call>', [("bash", '{"command": "ls"}')]),
        ("stop", (OTHER, BASH), " no arguments", [("stop", "no arguments")]),
        ("required", (OTHER, BASH), ' "stop", "arguments": {}}</tool_call>', [("stop", "{}")]),
        ("required", (OTHER, BASH), " no call", []),
        ("none", (OTHER, BASH), f"I would {CALL}", []),
        ("auto", (OTHER, BASH), CALL, [("bash", '{"command": "ls"}')]),
    ],
)
@pytest.mark.parametrize("shape", ["chatml", "qwen2.5", "mistral", "deepseek", "qwen3"])
def test_a_call_that_is_asked_for_is_opened_and_the_opening_is_not_trained(shape, choice, tools, says, calls):
    """Except where the model may think before it. The tokens of the opening stand in all later prompts."""
    opens = choice not in ("auto", "none") and shape not in ("deepseek", "qwen3")
    thought = "</think>" if shape == "deepseek" else ""
    agent = scripted([thought + says, "done", "done"], shape)

    async def play(kept):
        gateway = Gateway(agent)
        session = gateway.open()
        asked = (Message("user", "hi"),)
        first = (await session.call(ModelRequest(asked, tools=tools, tool_choice=choice))).answer
        if not kept:
            gateway.model._kept.clear()
        chat = (*asked, first.message, Message("user", "on"))
        await session.call(ModelRequest(chat, tools=tools))
        await session.call(ModelRequest(chat, tools=(*tools, OTHER)))
        for node in session.tree.nodes:
            session.sent(node)
        return first, session

    first, session = asyncio.run(play(True))
    prompts, decode = agent.engine.prompts.copy(), agent.engine.tokenizer.decode
    node = session.tree.nodes[0]
    if opens or choice in ("auto", "none"):
        assert [(call.name, call.arguments) for call in first.calls] == calls
        assert first.text == {"none": "I would", "auto": ""}.get(
            choice, "" if calls else '<tool_call>\n{"name": no call'
        )
    assert (node.opening > 0) == opens
    assert (decode(node.answer_ids) != decode(node.response_ids)) == opens
    assert session.tree.nodes[1].continues == (prompts[1][: len(prompts[0])] == prompts[0])
    if opens:
        assert decode(node.answer_ids[:-1]) in decode(prompts[2])
    assert sum(sum(sample.mask) for sample in session.samples()) == session.drawn_tokens
    agent.engine.prompts.clear()
    assert [node.response_ids for node in asyncio.run(play(False))[1].tree.nodes] == [
        node.response_ids for node in session.tree.nodes
    ]
    assert agent.engine.prompts == prompts


IMAGE = "data:image/png;base64,iVBORw0KGgo="
PART = {"type": "image_url", "image_url": {"url": IMAGE}}
INPUT = {"type": "input_image", "image_url": IMAGE}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE.split(",")[1]}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [BLOCK]}
SHOWN = {
    "chat/completions": [
        {"messages": [{"role": role, "content": [PART], **more}]}
        for role, more in (("user", {}), ("system", {}), ("assistant", {}), ("tool", {"tool_call_id": "c"}))
    ],
    "responses": [
        {"input": [{"role": "user", "content": [INPUT]}]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": [INPUT]}]},
        {"input": "hi", "instructions": [INPUT]},
    ],
    "messages": [
        {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "system": [BLOCK]},
        {"max_tokens": 5, "messages": [{"role": "user", "content": [BLOCK]}]},
        {"max_tokens": 5, "messages": [{"role": "system", "content": [BLOCK]}, {"role": "user", "content": "hi"}]},
        {"max_tokens": 5, "messages": [{"role": "user", "content": [RESULT]}]},
    ],
}


@pytest.mark.parametrize("path", SHOWN)
def test_images_are_refused_by_a_model_of_texts_and_reach_an_endpoint(path):
    async def work(gateway, client):
        session = gateway.open()
        answers = [await post(client, session, path, json=shown) for shown in SHOWN[path]]
        return [answer.status_code for answer in answers], answers[0].json()

    statuses, told = call_over_http(work)
    assert set(statuses) == {400}
    assert "reads no images" in told["error"]["message"]
    with ChatServer(lambda exchange: exchange.json(completion("yes"))) as server:
        assert set(call_over_http(work, Upstream(Endpoint(server.url), "m"))[0]) == {200}
        assert all(IMAGE in json.dumps(request["messages"]) for request in server.requests)


def test_a_stop_text_cuts_what_the_client_sees_and_not_the_tokens():
    agent = scripted(["one STOP two"])

    async def play():
        session = Gateway(agent).open()
        return await session.call(ModelRequest((Message("user", "hi"),), stop=("STOP",)))

    node = asyncio.run(play())
    assert (node.answer.text, node.answer.finish, node.answer.stop_text) == ("one ", "stop_text", "STOP")
    assert agent.engine.tokenizer.decode(node.response_ids[:-1]) == "one STOP two"


def test_a_stop_text_is_not_looked_for_in_the_opening_of_a_call():
    agent = scripted([' {"command": "ls STOP"}}'])

    async def play():
        request = ModelRequest((Message("user", "hi"),), tools=(BASH,), tool_choice="bash", stop=("tool", "\n", "STOP"))
        return await Gateway(agent).open().call(request)

    answer = asyncio.run(play()).answer
    assert (answer.finish, answer.stop_text) == ("stop_text", "STOP")
    assert [(call.name, call.arguments) for call in answer.calls] == [("bash", '{"command": "ls')]


@pytest.mark.parametrize("kinds", ["main", ["mian"]])
def test_samples_of_no_kind_of_call_are_refused(kinds):
    with pytest.raises(rollenv.UsageError, match="kind"):
        Gateway(scripted(["a"])).open().samples(kinds)


def test_a_reward_of_no_call_is_refused():
    with pytest.raises((rollenv.UsageError, GatewayError)):
        Gateway(scripted(["a"])).open().set_reward(1.0, "nothing")
