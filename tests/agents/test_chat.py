"""The agent behind a chat endpoint, against a server on 127.0.0.1 that does all that an endpoint can do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import itertools
import json
import socket

import numpy as np
import pytest
from chat_answers import PASSING, SOON, answer, ask, good
from chat_server import ChatServer, completion, events

from rollenv.agents.base import AgentFailed, ContextFull
from rollenv.agents.chat import ChatAgent
from rollenv.agents.chat.endpoint import Patience, Prices
from rollenv.agents.chat.replies import read_reply
from rollenv.agents.prompts import StepPrompt
from rollenv.core.errors import UsageError
from rollenv.core.pictures import Picture, picture
from rollenv.core.tools.calls import find_calls


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def one(server, **settings):
    (action,) = ask(ChatAgent("tiny", server.url, **{"patience": SOON, **settings}))
    return action


async def drip(exchange):
    await exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    while True:
        await exchange.raw(b": still here\n\n")
        await asyncio.sleep(0.02)


def replying(data, stream=None):
    """Answers with the completion, as a stream where that is asked for."""

    async def behave(exchange):
        streaming = exchange.body.get("stream")
        await (exchange.chunks([stream or events(data)]) if streaming else exchange.json(data))

    return behave


def delta(message):
    """A whole message in one event of a stream."""
    choice = {"delta": message, "finish_reason": "stop"}
    return f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode()


@pytest.mark.combinations
@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", PASSING)
def test_what_goes_wrong_for_good_is_said_and_what_passes_is_not_noticed(name, streaming):
    wrong, message = PASSING[name]
    with ChatServer(wrong) as server:
        with pytest.raises(AgentFailed, match=rf"(?s){message}"):
            one(server, stream=streaming)
        assert len(server.requests) == 3
        server.wait_closed()
    answers = iter([wrong, wrong, good])
    with ChatServer(lambda exchange: next(answers)(exchange)) as server:
        agent = ChatAgent("tiny", server.url, patience=SOON, stream=streaming)
        assert ask(agent)[0].text == "up"
        assert (agent.totals.requests, agent.totals.retries, agent.totals.failures) == (3, 2, 0)


@pytest.mark.parametrize("behave", [lambda exchange: exchange.hang(), drip])
def test_an_endpoint_that_hangs_or_drips_is_given_up(behave):
    with ChatServer(behave) as server:
        with pytest.raises(AgentFailed, match=r"0\.2 s"):
            one(server, patience=Patience(timeout=0.2, retries=1, first_wait=0.001))
        server.wait_closed()


def test_an_endpoint_that_is_not_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        agent = ChatAgent("tiny", f"http://127.0.0.1:{free.getsockname()[1]}/v1", patience=SOON)
        with pytest.raises(AgentFailed, match="ConnectError"):
            ask(agent)
    assert agent.totals.failures == 1


def said(message, **more):
    return {"error": {"message": message, **more}}


TOO_LONG = [
    said("Your messages resulted in 9 tokens", code="context_length_exceeded"),
    {"object": "error", "message": "This model's maximum context length is 4096 tokens. However, you requested"},
    said("The decoder prompt (length 9) is longer than the maximum model length of 4."),
    said("request exceeds the available context size", type="exceed_context_size_error"),
    said("prompt is too long: 9 > 4"),
]


@pytest.mark.parametrize(
    ("status", "data", "error", "message"),
    [
        (401, said("Incorrect API key provided: sk-secret"), UsageError, "OPENAI_API_KEY"),
        (403, {"detail": "not you"}, UsageError, "api_key"),
        (404, said("The model `tiny` does not exist"), UsageError, "does not exist"),
        (404, "nothing here", UsageError, "/v1"),
        (404, said("no\nsuch\r\nmodel"), UsageError, "no such model"),
        (400, said("temperature is too high"), AgentFailed, "400 "),
        (422, {"detail": [{"msg": "field required"}]}, AgentFailed, "field required"),
        (429, said("quota", code="insufficient_quota"), AgentFailed, "429 "),
        *((400, data, ContextFull, "StepPrompt") for data in TOO_LONG),
    ],
)
def test_what_no_repetition_can_help_is_said_at_once_in_one_line(status, data, error, message):
    with ChatServer(answer(data, f"{status} No")) as server:
        with pytest.raises(error, match=message) as caught:
            one(server, api_key="sk-secret")
        assert len(server.requests) == 1
        assert server.headers[0]["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_may_end_with_a_blank_and_a_short_one_is_no_secret():
    with ChatServer(answer(said("the task is unknown"), "400 No")) as server:
        with pytest.raises(AgentFailed, match="the task is unknown"):
            one(server, api_key="k \n")
        assert server.headers[0]["authorization"] == "Bearer k"


def test_a_redirection_is_not_followed_with_the_key():
    redirect = answer(None, "307 Temporary Redirect", Location="http://127.0.0.1:1/v1")
    message = r"redirects to http://127\.0\.0\.1:1/v1; change the base URL"
    with ChatServer(redirect) as server, pytest.raises(UsageError, match=message):
        one(server, api_key="sk-secret")


DATE = email.utils.formatdate(0, usegmt=True)


@pytest.mark.parametrize("after", ["0", "0.001", DATE, "later", "nan", "1 Jan 2020 0:0:0 +99999999999"])
def test_retry_after_is_heeded_unless_it_is_too_long(after, caplog):
    answers = iter([answer({}, "429 No", Retry_After=after), good, answer({}, "503 No", Retry_After="3600")])
    with ChatServer(lambda exchange: next(answers)(exchange)) as server:
        assert one(server).text == "up"
        assert caplog.text.count("429 No") == 1
        assert "authorization" not in server.headers[0]
        with pytest.raises(AgentFailed, match="3600 s"):
            one(server)


# -- what is sent and read ---------------------------------------------------------------------------------------------


def test_the_whole_chat_is_sent_with_the_environments_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    said = itertools.count()
    with ChatServer(lambda exchange: exchange.json(completion(f"answer {next(said)}"))) as server:
        agent = ChatAgent("tiny", server.url, system="be brief \udfff", temperature=0.5, extra_body={"top_k": 5})
        ask(agent, [("rules", {"suffix": "board 1"}), ("moved \ud800", {"suffix": "board 2"})])
    assert server.requests[1] == {
        "model": "tiny",
        "temperature": 0.5,
        "top_k": 5,
        "seed": server.requests[1]["seed"],
        "messages": [
            {"role": "system", "content": "be brief \ufffd"},
            {"role": "user", "content": "rules\nboard 1"},
            {"role": "assistant", "content": "answer 0"},
            {"role": "user", "content": "moved \ufffd\nboard 2"},
        ],
    }
    assert server.headers[0]["authorization"] == "Bearer sk-mine"


RED, BLUE = (picture(np.full((2, 2, 3), colour, np.uint8)) for colour in ((255, 0, 0), (0, 0, 255)))


def sent(part):
    return {"type": "image_url", "image_url": {"url": part.url}} if isinstance(part, Picture) else part


def words(said):
    return {"type": "text", "text": said}


@pytest.mark.parametrize("prompt", [None, StepPrompt("{state}")])
@pytest.mark.parametrize(
    ("observation", "images", "parts"),
    [
        ("<image>How long?", [RED], [RED, words("How long?")]),
        ("How long?", [RED, BLUE], [RED, BLUE, words("How long?")]),
        ("A <image> b <image>", [RED, BLUE], [words("A "), RED, words(" b "), BLUE]),
        ("<image>", [BLUE], [BLUE]),
        ("no <image> here", [], "no <image> here"),
    ],
)
def test_pictures_stand_where_the_text_has_their_marks(prompt, observation, images, parts):
    with ChatServer(good) as server:
        ask(ChatAgent("tiny", server.url, prompt=prompt), [(observation, {"images": images})])
    content = parts if isinstance(parts, str) else [*map(sent, parts)]
    assert server.requests[0]["messages"] == [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("observation", "images"),
    [
        ("<image> and <image>", [RED]),
        ("<image>", [RED, BLUE]),
        ("x", ["data:image/png;base64,cmVk"]),
        ("x", [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]),
        ("x", "cmVk"),
    ],
)
def test_pictures_that_do_not_fit_fail_the_episode(observation, images):
    with ChatServer(good) as server, pytest.raises(AgentFailed, match="picture"):
        ask(ChatAgent("tiny", server.url), [(observation, {"images": images})])
    assert server.requests == []


def test_pictures_of_later_turns_and_of_tools_are_sent_too():
    with ChatServer(answer(completion("", message={"tool_calls": CALLS[:1]}))) as server:
        told = {"use_tool": True, "images": [BLUE]}
        ask(ChatAgent("tiny", server.url), [("<image>", {"images": [RED]}), ("5", told)])
    _, said, tool, seen = server.requests[1]["messages"]
    assert (said["role"], tool) == ("assistant", {"role": "tool", "tool_call_id": "call_1", "content": "5"})
    assert seen == {"role": "user", "content": [sent(BLUE)]}


def test_a_step_prompt_shows_the_picture_of_its_turn_and_none_for_what_a_model_writes():
    """Also where observations differ in their pictures only."""
    with ChatServer(answer(completion("<image> up"))) as server:
        agent = ChatAgent("tiny", server.url, prompt=StepPrompt(history_length=1))
        ask(
            agent,
            [(text, {"images": [each]}) for text, each in (("<image>", RED), ("<image>", BLUE), ("<image>!", RED))],
        )
    assert [request["messages"][0]["content"] for request in server.requests] == [
        [sent(RED)],
        [sent(BLUE), words("\n\n[image]\nYou: [image] up\n\n")],
        [words("[image]\n\nYou: [image] up\n"), sent(RED), words("!\n")],
    ]


def test_messages_are_recorded_without_the_bytes_of_pictures():
    with ChatServer(good) as server:
        (action,) = ask(ChatAgent("tiny", server.url), [("<image>?", {"images": [RED]})])
    shape = {"type": "image", "sha256": RED.sha256, "width": 2, "height": 2}
    assert action.messages == ({"role": "user", "content": [shape, words("?")]},)


def test_what_cannot_be_trained_on_is_refused():
    with ChatServer(good) as server, pytest.raises(UsageError, match="pictures"):
        ask(ChatAgent("tiny", server.url, token_ids=True), [("<image>", {"images": [RED]})])


def test_bounded_prompts_are_one_message():
    with ChatServer(answer(completion("<think>x</think>\nup"))) as server:
        agent = ChatAgent("tiny", server.url, prompt=StepPrompt("{history}{state}", history_length=1))
        ask(agent, [("one", {}), ("two", {"suffix": "board"})])
    assert [r["messages"] for r in server.requests] == [
        [{"role": "user", "content": "one"}],
        [{"role": "user", "content": "one\nYou: up\nboard"}],
    ]


def test_seeds_follow_the_episode():
    with ChatServer(good) as server:
        for seed in (1, 1, 2):
            ask(ChatAgent("tiny", server.url), [("a", {}), ("b", {})], seed)
        ask(ChatAgent("tiny", server.url, seeded=False))
    seeds = [r.get("seed") for r in server.requests]
    assert seeds[:2] == seeds[2:4]
    assert len(set(seeds[:2] + seeds[4:6])) == 4
    assert seeds[6] is None


CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": "x\\ny"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("text", "info"), [(None, {"use_tool": True}), ("Let me see.", {})])
@pytest.mark.parametrize("thought", [{}, {"reasoning": "hm"}])
def test_tool_calls_are_told_as_text_and_answered_as_tool_messages(streaming, text, info, thought):
    calls = [{**CALLS[0], "extra_content": {"google": {"thought_signature": "s"}}}, CALLS[1]]
    data = completion(text, message={"tool_calls": calls, **thought}, finish_reason="tool_calls")
    tools = [{"type": "function", "function": {"name": "add"}}]
    with ChatServer(replying(data)) as server:
        agent = ChatAgent("tiny", server.url, tools=tools, stream=streaming, patience=SOON)
        action, _ = ask(agent, [("add", {}), ("3", info)])
    call = find_calls(action.text)[0][0]
    assert (call.name, call.arguments, call.problem) == ("add", {"a": 1, "b": "x\ny"}, "")
    assert action.text.startswith(text or "<tool_call>")
    assert server.requests[0]["tools"] == tools
    assert server.requests[1]["messages"][1:] == [
        {"role": "assistant", "content": text or "", "tool_calls": calls, **thought},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        {"role": "tool", "tool_call_id": "call_2", "content": "(answered above)"},
    ]


@pytest.mark.parametrize(
    ("message", "finish", "action"),
    [
        ({"content": "<think>maybe \\boxed{42}? let me"}, "length", ("", "length")),
        ({"content": "<think>maybe \\boxed{42}? let me"}, "stop", ("", "unfinished")),
        ({"content": "maybe \\boxed{42}? let me"}, "length", ("", "length")),  # the answer before closed a thought
        ({"content": "\\boxed{42}"}, "stop", ("\\boxed{42}", "stop")),
        ({"content": "", "reasoning_content": "maybe \\boxed{42}?"}, "length", ("", "length")),
        ({"content": "<|channel|>analysis<|message|>\\boxed{42}"}, "length", ("", "length")),
        ({"content": "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>up"}, "stop",
         ("up", "stop")),
    ],
)  # fmt: skip
def test_nothing_in_a_thought_is_an_action(message, finish, action):
    answers = [completion("hm</think> up"), completion(None, message=message, finish_reason=finish)]

    async def behave(exchange):
        await exchange.json(answers[len(server.requests) - 1])

    with ChatServer(behave) as server:
        said = ask(ChatAgent("tiny", server.url, patience=SOON), [("go", {}), ("on", {})])
    assert [(each.text, each.finish) for each in said] == [("up", "stop"), action]


def test_arguments_that_are_no_json_are_for_the_environment_to_refuse():
    call = {"id": "c", "function": {"name": "add", "arguments": '{"a": 1'}}
    with ChatServer(answer(completion(None, message={"tool_calls": [call]}))) as server:
        assert "not valid JSON" in find_calls(one(server).text)[0][0].problem


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
@pytest.mark.parametrize("text", ["", "up", "naïve 日本 🙂\n\n\u2028 end", "data: [DONE]\n\ndata: {}"])
def test_a_streamed_answer_is_the_same_answer(text, size):
    data = completion(text, finish_reason="length")
    parts = [events(data)[i : i + size] for i in range(0, len(events(data)), size)]

    async def behave(exchange):
        await (exchange.chunks(parts) if exchange.body.get("stream") else exchange.json(data))

    with ChatServer(behave) as server:
        agents = [ChatAgent("tiny", server.url, stream=s, patience=SOON) for s in (False, True)]
        plain, streamed = (ask(agent)[0] for agent in agents)
    assert plain == streamed
    assert (plain.text, plain.finish) == (text, "length")
    assert agents[0].totals == agents[1].totals
    assert agents[1].totals.completion_tokens == 10


@pytest.mark.parametrize("streaming", [False, True])
def test_token_ids_and_logprobs_are_taken_where_the_server_gives_them(streaming):
    logprobs = {"content": [{"token": "u", "logprob": -0.5}, {"token": "p", "logprob": -1.0}]}
    data = completion("up", token_ids=[7, 8], logprobs=logprobs) | {"prompt_token_ids": [1, 2, 3]}
    with ChatServer(replying(data)) as server:
        action = one(server, token_ids=True, stream=streaming)
    assert server.requests[0]["return_token_ids"] and server.requests[0]["logprobs"]  # noqa: PT018
    assert (action.prompt_ids, action.response_ids, action.logprobs) == ((1, 2, 3), (7, 8), (-0.5, -1.0))
    message = r"0 prompt ids, 0 response ids and 0 log-prob.*vLLM"
    with ChatServer(good) as server, pytest.raises(UsageError, match=message):
        one(server, token_ids=True)


def test_totals_and_cost():
    prices = Prices(prompt=1.0, completion=10.0, cached=0.1)
    with ChatServer(good) as server:
        agent = ChatAgent("tiny", server.url, prices=prices)
        ask(agent, [("a", {}), ("b", {})])
    totals = agent.totals
    assert (totals.requests, totals.retries, totals.failures) == (2, 0, 0)
    assert (totals.prompt_tokens, totals.cached_tokens, totals.completion_tokens) == (180, 80, 20)
    assert totals.cost == pytest.approx(2 * (50 * 1.0 + 40 * 0.1 + 10 * 10.0) / 1e6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url"),
        ({"concurrency": 0}, "concurrency"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"tokens_per_minute": -1}, "tokens_per_minute"),
        ({"extra_body": {"messages": []}}, "'messages'"),
    ],
)
def test_arguments_that_cannot_be(arguments, message):
    with pytest.raises(UsageError, match=message):
        ChatAgent("tiny", **{"base_url": "http://127.0.0.1:1/v1", **arguments})


def test_an_action_keeps_the_reply_as_it_came_and_what_was_new_to_the_model():
    """Thoughts, whether apart or in the text, and each message once over the whole chat."""
    said = iter(["<think>left or up</think>up", "down"])

    async def thinks(exchange):
        data = completion(next(said))
        data["choices"][0]["message"]["reasoning_content"] = "apart"
        await exchange.json(data)

    with ChatServer(thinks) as server:
        first, second = ask(ChatAgent("tiny", server.url, patience=SOON, system="brief"), [("a", {}), ("b", {})])
    assert (first.text, second.text) == ("up", "down")
    assert first.raw == "<think>apart</think>\n<think>left or up</think>up"
    assert second.raw == "<think>apart</think>\ndown"
    assert [m["role"] for m in first.messages] == ["system", "user"]
    assert second.messages == ({"role": "user", "content": "b"},)


PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
    {"type": "text", "text": "u"},
    {"text": "p"},
]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("message", "raw"), [({"content": PARTS}, ""), ({"content": "up", "reasoning": "hm"}, "<think>hm</think>\nup")]
)
def test_thoughts_and_texts_in_parts_are_read(message, raw, streaming):
    with ChatServer(replying(completion(message=message), delta(message))) as server:
        reply = one(server, stream=streaming)
    assert (reply.text, reply.raw) == ("up", raw)


def test_thoughts_without_an_answer_are_an_empty_answer():
    reply = read_reply(completion(None, message={"content": None, "reasoning_content": "hm"}))
    assert (reply.text, reply.thoughts) == ("", "hm")


def _call(**function):
    return {"id": "a", "type": "function", "function": {"name": "find", "arguments": "{}"} | function}


_ODD = [
    {"tool_calls": [_call(name="\ud800")]},
    {"tool_calls": [_call(arguments="{\ud800")]},
    {"tool_calls": [_call(arguments={"a": 1})]},
    {"tool_calls": [_call(arguments=[1])]},
    {"tool_calls": [_call(name=3)]},
    {"tool_calls": [_call() | {"id": [1]}]},
    {"tool_calls": 7},
    {"content": "\ud800"},
    {"content": ["x"]},
    {"reasoning": "\ud800"},
]


@pytest.mark.combinations
@pytest.mark.parametrize("message", _ODD)
@pytest.mark.parametrize("streaming", [False, True])
def test_what_is_odd_in_an_answer_is_read_or_refused(message, streaming):
    whole = completion("x", message=message)
    with ChatServer(replying(whole, delta(whole["choices"][0]["message"]))) as server:
        agent = ChatAgent("m", server.url, tools="env", stream=streaming, patience=SOON)
        with contextlib.suppress(AgentFailed):
            for action in ask(agent, [("go", {}), ("on", {"use_tool": True})]):
                (action.text + action.raw).encode()


def test_calls_without_an_id_of_their_own_get_one():
    calls = [_call(), _call(), _call() | {"id": None}, _call() | {"id": ""}]
    found = read_reply(completion(None, message={"tool_calls": calls})).calls
    assert len({call.id for call in found} - {""}) == len(calls) == len(found)


@pytest.mark.parametrize("count", [10**400, -5, 1.5, "-90", "many", None, True, [1]])
def test_usage_that_cannot_be_counts_nothing(count):
    usage = {"prompt_tokens": count, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": count}}
    reply = read_reply({**completion("x"), "usage": usage})
    assert Prices(1, 2, 0.5).of(reply) == reply.prompt_tokens == 0
    usage = {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 10**8}}  # more than there are
    assert Prices(1, 2, 0.5).of(read_reply({**completion("x"), "usage": usage})) == pytest.approx(5e-6)
