"""The three dialects against their vendors' own SDKs, and against what clients may send."""

from __future__ import annotations

import dataclasses
import json

import anthropic
import openai
import pytest
from anthropic.types import ModelInfo
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import ResponseErrorEvent
from vendors import (
    ANSWERS,
    ASKED,
    CALLS,
    CHAT,
    MESSAGES,
    NUMBERS,
    RESPONSES,
    TYPES,
    Gateway,
    every_answer,
    nothing_stored,
    parsed,
    same,
)

from rollenv.agents.gateway.dialects import models
from rollenv.agents.gateway.messages import ERRORS, GatewayError, Message, ModelAnswer, ModelRequest


def chat_whole(client):
    return client.openai.chat.completions.create(model="m", messages=ASKED)


def chat_stream(client):
    options = {"include_usage": True}
    with client.openai.chat.completions.stream(model="m", messages=ASKED, stream_options=options) as stream:
        for _ in stream:
            pass
        try:
            return stream.get_final_completion()
        except openai.LengthFinishReasonError as error:  # this helper of the SDK takes no cut answers
            return error.completion


def responses_whole(client):
    return client.openai.responses.create(model="m", input=ASKED)


def responses_stream(client):
    with client.openai.responses.stream(model="m", input=ASKED) as stream:
        *_, last = stream
        assert last.type in ("response.completed", "response.incomplete")
        return last.response


def messages_whole(client):
    return client.anthropic.messages.create(model="m", max_tokens=9, messages=ASKED)


def messages_stream(client):
    with client.anthropic.messages.stream(model="m", max_tokens=9, messages=ASKED) as stream:
        for _ in stream:
            pass
        return stream.get_final_message()


def chat_echo(completion):
    return {"messages": [completion.choices[0].message.model_dump(exclude_none=True)]}


def responses_echo(response):
    return {"input": [item.model_dump(mode="json", exclude={"parsed_arguments"}) for item in response.output]}


def messages_echo(message):
    return {"messages": [{"role": message.role, "content": [block.model_dump() for block in message.content]}]}


WAYS = {
    "chat": (CHAT, chat_whole, chat_echo),
    "chat stream": (CHAT, chat_stream, chat_echo),
    "responses": (RESPONSES, responses_whole, responses_echo),
    "responses stream": (RESPONSES, responses_stream, responses_echo),
    "messages": (MESSAGES, messages_whole, messages_echo),
    "messages stream": (MESSAGES, messages_stream, messages_echo),
}


@every_answer
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_an_sdk_receives_and_sends_back_is_the_answer(way, answer):
    dialect, ask, echo = way
    received = ask(Gateway(answer))
    (back,) = dialect.read(echo(received), nothing_stored).messages
    if dialect is MESSAGES:
        assert same(back) == same(answer.message)
    else:
        assert back == answer.message


def test_that_an_answer_was_withheld_is_said_in_each_sdk():
    gateway = Gateway(ModelAnswer("", finish="content_filter", **NUMBERS))
    assert chat_whole(gateway).choices[0].finish_reason == "content_filter"
    for ask in (responses_whole, responses_stream):
        assert ask(gateway).incomplete_details.reason == "content_filter"
    for ask in (messages_whole, messages_stream):
        assert ask(gateway).stop_reason == "refusal"


@every_answer
def test_ends_and_usage_in_each_sdk(answer):
    for ask in (chat_whole, chat_stream):
        completion = ask(Gateway(answer))
        expected = "stop" if answer.finish == "stop_text" else answer.finish
        assert completion.choices[0].finish_reason == expected
        assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (
            20,
            5,
            25,
        )
        assert completion.usage.prompt_tokens_details.cached_tokens == 8
        assert completion.id.endswith(answer.id)
    for ask in (responses_whole, responses_stream):
        response = ask(Gateway(answer))
        assert response.output_text == answer.text
        assert response.status == ("incomplete" if answer.finish == "length" else "completed")
        assert (response.usage.input_tokens, response.usage.output_tokens) == (20, 5)
        assert response.usage.input_tokens_details.cached_tokens == 8
    for ask in (messages_whole, messages_stream):
        message = ask(Gateway(answer))
        ends = {"stop": "end_turn", "stop_text": "stop_sequence", "length": "max_tokens", "tool_calls": "tool_use"}
        assert (message.stop_reason, message.stop_sequence) == (ends[answer.finish], answer.stop_text or None)
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (12, 8)
        assert message.usage.output_tokens == 5


@every_answer
def test_answers_and_events_are_of_the_vendors_types(answer):
    request = ModelRequest((Message("user", "Look."),), model="m")
    for dialect, whole, event in TYPES:
        whole.model_validate(dialect.response_body(answer, request))
        for one in parsed(dialect.response_events(answer, request)):
            event.validate_python(one)


def test_arguments_that_are_no_object_reach_a_messages_client_where_claude_code_keeps_them():
    for name in ("truncated call", "malformed call", "call of a list", "call with NaN"):
        answer = ANSWERS[name]
        for ask in (messages_whole, messages_stream):
            (block,) = ask(Gateway(answer)).content
            assert block.input["__unparsedToolInput"]["raw"] == answer.calls[0].arguments


def test_responses_events_come_in_order_and_count_up():
    answer = ModelAnswer("I look.", (dataclasses.replace(CALLS[0], namespace="shell"),), "Hm.", "tool_calls")
    events = parsed(RESPONSES.response_events(answer, ModelRequest(())))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert [item["id"] for item in events[-1]["response"]["output"]] == [
        f"rs_{answer.id}",
        f"msg_{answer.id}",
        "fc_call_1",
    ]
    assert events[-1]["response"]["output"][2]["namespace"] == "shell"


def test_a_chat_stream_ends_with_usage_only_where_it_is_asked_for():
    request = CHAT.read({"messages": ASKED, "stream": True}, nothing_stored)
    assert "usage" not in parsed(CHAT.response_events(ANSWERS["all"], request))[-1]
    asked = {"messages": ASKED, "stream": True, "stream_options": {"include_usage": True}}
    last = parsed(CHAT.response_events(ANSWERS["all"], CHAT.read(asked, nothing_stored)))[-1]
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 25


@pytest.mark.parametrize("field", ["return_token_ids", "logprobs"])
def test_tokens_go_into_a_chat_answer_where_they_are_asked_for(field):
    answer = ModelAnswer("Hé", prompt_ids=(1, 2), response_ids=(3, 4), logprobs=(-0.5, -0.25))
    request = CHAT.read({"messages": ASKED, field: True}, nothing_stored)
    whole, first = CHAT.response_body(answer, request), parsed(CHAT.response_events(answer, request))[0]
    ChatCompletion.model_validate(whole)
    ChatCompletionChunk.model_validate(first)
    for got in (whole, first):
        assert got["prompt_token_ids"] == [1, 2]
        assert got["choices"][0]["token_ids"] == [3, 4]
        assert [(one["token"], one["logprob"]) for one in got["choices"][0]["logprobs"]["content"]] == [
            ("token_id:3", -0.5),
            ("token_id:4", -0.25),
        ]
    assert CHAT.response_body(ModelAnswer("of an endpoint"), request)["choices"][0]["logprobs"] is None
    assert "token_ids" not in json.dumps(CHAT.response_body(answer, ModelRequest(())))


# -- errors and the rest -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_error_is_raised_by_the_sdk_with_its_words(way, kind):
    dialect, ask, _ = way
    error = GatewayError(kind, "Ask for less.", param="input", tokens=9001, maximum=8192)
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as raised:
        ask(Gateway(error=error))
    assert raised.value.status_code == (529 if dialect is MESSAGES and kind == "overloaded" else ERRORS[kind])
    if kind != "overflow":
        assert "Ask for less." in str(raised.value)
    elif dialect is MESSAGES:
        assert "prompt is too long: 9001 tokens > 8192 maximum" in str(raised.value)
    else:
        assert raised.value.code == "context_length_exceeded"
        assert "maximum context length is 8192 tokens" in str(raised.value)
        assert "9001" in str(raised.value)


@pytest.mark.parametrize("ask", [chat_stream, responses_stream, messages_stream])
def test_an_error_in_a_stream_that_has_begun_is_raised_by_the_sdk(ask):
    with pytest.raises((openai.APIError, anthropic.APIError), match="engine"):
        ask(Gateway(error=GatewayError("failed", "The engine is gone."), begun=True))


@pytest.mark.parametrize(
    ("kind", "code"),
    [("overflow", "context_length_exceeded"), ("ended", "invalid_prompt"), ("overloaded", "server_error")],
)
def test_a_failed_response_tells_codex_whether_to_try_again(kind, code):
    first, last = parsed([RESPONSES.error_event(GatewayError(kind, "No."))])
    assert (first["type"], last["type"]) == ("error", "response.failed")
    assert (last["response"]["status"], last["response"]["error"]["code"]) == ("failed", code)
    ResponseErrorEvent.model_validate(first)


def test_both_sdks_list_models_and_count_tokens():
    client = Gateway()
    assert [model.id for model in client.openai.models.list()] == ["policy", "other"]
    listed = list(client.anthropic.models.list())
    assert [model.display_name for model in listed] == ["policy", "other"]
    ModelInfo.model_validate(listed[0].model_dump())
    assert client.anthropic.messages.count_tokens(model="m", messages=ASKED).input_tokens == 42
    assert models([])["data"] == []
