"""A policy that sees behind a gateway: pictures in requests of every dialect, and in its training data."""

import asyncio
import json
import pickle
from dataclasses import asdict

import httpx
import numpy as np
import pytest
from seeing import DEAF_TOOLS, drawn, seeing

from rollenv.agents.gateway.gateway import Gateway
from rollenv.agents.gateway.mcp import Tools
from rollenv.agents.gateway.session import GatewaySample
from rollenv.core.picture_forms import bound, contents
from rollenv.core.pictures import is_picture_token, numbered, picture
from rollenv.rollout.records.sessions import session_trajectory, trajectory_of

A, B = drawn(1), drawn(2)
TOOL = {"type": "function", "function": {"name": "look", "description": "x", "parameters": {"type": "object"}}}


def parts(form, *images):
    return contents(form, bound(" what do you see?" + "<image>" * len(images), images), images)


BODIES = {
    "v1/chat/completions": lambda *i: {"model": "m", "messages": [{"role": "user", "content": parts("openai", *i)}]},
    "v1/responses": lambda *i: {"model": "m", "input": [{"role": "user", "content": parts("responses", *i)}]},
    "v1/messages": lambda *i: {
        "model": "m",
        "max_tokens": 6,
        "messages": [{"role": "user", "content": parts("messages", *i)}],
    },
    "v1beta/models/m:generateContent": lambda *i: {"contents": [{"role": "user", "parts": parts("gemini", *i)}]},
}


def ask(*asked, record=None, template="", agent=None):
    """The statuses and bodies of answers, and the session; ``asked``: paths and bodies."""

    async def work():
        async with Gateway(agent or seeing(template=template), record=record) as gateway, httpx.AsyncClient() as client:
            session = gateway.open()
            answers = []
            for path, body in asked:
                made = body(answers) if callable(body) else body
                answers.append(await client.post(f"{session.anthropic_url}/{path}", json=made, timeout=60))
            session.finish(1.0)
            return [(answer.status_code, answer.json()) for answer in answers], session

    return asyncio.run(work())


def shown(ids):
    """The pictures in a prompt, in order."""
    numbers = [number for number in ids if is_picture_token(number)]
    return [numbered(number) for number in dict.fromkeys(numbers)]


@pytest.mark.parametrize("path", BODIES)
def test_pictures_of_every_dialect_are_tokens_of_the_prompt(path):
    ((status, told),), session = ask((path, BODIES[path](A, B)))
    assert status == 200, told
    (node,) = session.tree.nodes
    assert shown(session.tree.prompt_ids(node)) == [A, B]
    assert node.context[-1].images == (A, B)
    text = json.dumps(session.to_dict())
    assert A.sha256 in text
    assert "base64" not in text
    assert len(text) < 20_000


def continued(answers):
    said = answers[0].json()["choices"][0]["message"]
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    first = BODIES["v1/chat/completions"](A)["messages"][0]
    asked = [first, said, {"role": "user", "content": "go <image>"}, {"role": "assistant", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "c", "content": parts("openai", B)}
    return {"model": "m", "messages": [*asked, result], "tools": [TOOL]}


def test_results_of_tools_have_pictures_and_samples_keep_them():
    chat = "v1/chat/completions"
    first = BODIES[chat](A) | {"tools": [TOOL]}
    ((_, _), (status, told)), session = ask((chat, first), (chat, continued))
    assert status == 200, told
    node = session.tree.nodes[-1]
    assert shown(session.tree.prompt_ids(node)) == [A, B]
    (*_, sample) = session.samples()
    assert set(sample.images) == {A, B}
    read = GatewaySample(**json.loads(json.dumps({**asdict(sample), "images": [i.as_json() for i in sample.images]})))
    assert (read.images, tuple(read.ids)) == (sample.images, sample.ids)
    for trajectory in (trajectory_of(session.samples()), session_trajectory(session)):
        last = pickle.loads(pickle.dumps(trajectory)).turns[-1]
        assert set(shown(last.prompt_ids)) == {A, B} == set(last.prompt_images)
        assert "base64" not in json.dumps(last.messages)
    played = session.action(node)
    assert len(played.logprobs) == len(played.response_ids) > 0
    assert np.isfinite(played.logprobs).all()


def test_no_picture_is_lost_in_a_template_that_leaves_those_of_tools_out():
    chat = "v1/chat/completions"
    first = BODIES[chat](A) | {"tools": [TOOL]}
    (_, (status, told)), session = ask((chat, first), (chat, continued), template=DEAF_TOOLS)
    assert status == 200, told
    assert shown(session.tree.prompt_ids(session.tree.nodes[-1])) == [A, B]


def test_a_gateway_that_starts_again_knows_its_pictures(tmp_path):
    record = tmp_path / "calls.jsonl"
    _, session = ask(
        *[("v1/messages", BODIES["v1/messages"](*images)) for images in ((A,), (A, B), (A,))], record=record
    )
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["event"] for line in lines].count("image") == 2
    assert "base64" not in "".join(json.dumps(line) for line in lines if line["event"] == "call")
    with Gateway(seeing(), record=record) as gateway:
        (again,) = gateway.sessions.values()
        assert [node.context for node in again.tree.nodes] == [node.context for node in session.tree.nodes]
        assert again.samples() == session.samples()


URL = {"type": "image_url", "image_url": {"url": "https://127.0.0.1:9/a.png"}}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "user", "content": [URL]}, "not fetched"),
        ({"role": "user", "content": [{**URL, "image_url": {"url": "data:image/png;base64,eA=="}}]}, "cannot be read"),
        ({"role": "user", "content": [{**URL, "image_url": {"url": "data:image/png;base64,?"}}]}, "base64"),
        ({"role": "user", "content": [{**URL, "image_url": {"url": "data:text/plain,x"}}]}, "cannot be read"),
        ({"role": "user", "content": parts("openai", *[A] * 501)}, "501 images"),
        ({"role": "system", "content": parts("openai", A)}, "users and tools"),
        ({"role": "assistant", "content": parts("openai", A)}, "users and tools"),
    ],
    ids=["address", "bytes", "base64", "text", "many", "system", "assistant"],
)
def test_what_is_no_picture_is_refused_in_a_line(message, said):
    messages = [message, {"role": "user", "content": "hi"}]
    ((status, told),), session = ask(("v1/chat/completions", {"model": "m", "messages": messages}))
    assert status == 400
    assert said in told["error"]["message"]
    assert "\n" not in told["error"]["message"]
    assert not session.tree.nodes


def test_a_hundred_pictures_and_words_that_look_like_marks():
    images = [drawn(number, 28, 28) for number in range(100)]
    body = BODIES["v1/chat/completions"](*images)
    body["messages"][0]["content"].insert(0, {"type": "text", "text": "<image> <|image_pad|> \ue0001\ue001"})
    ((status, told),), session = ask(("v1/chat/completions", body))
    assert status == 200, told
    assert shown(session.tree.prompt_ids(session.tree.nodes[0])) == images


def test_a_program_sees_the_task_and_its_actions_results():
    async def work():
        tools = Tools((), "Solve <image>.", [A])
        listed = await tools.answer({"id": 1, "method": "tools/list"})
        task = await tools.answer({"id": 2, "method": "tools/call", "params": {"name": "look"}})
        step = {"name": "step", "arguments": {"action": "up"}}
        asked = asyncio.ensure_future(tools.answer({"id": 3, "method": "tools/call", "params": step}))
        assert await tools.next_action() == "up"
        tools.show("Now <image>!", [B])
        return [tool["name"] for tool in listed["result"]["tools"]], task, await asked

    names, *results = asyncio.run(work())
    assert names == ["step", "look"]
    contents = [result["result"]["content"] for result in results]
    assert [[part["type"] for part in content] for content in contents] == [["image"], ["text", "image", "text"]]
    assert [picture(f"data:image/png;base64,{content[-2:][0]['data']}") for content in (contents[0], contents[1])] == [
        A,
        B,
    ]
    assert [tool["name"] for tool in Tools().functions] == ["step"]
