"""What the tests of dialects share: answers, their vendors' own SDK clients, and the vendors' types."""

from __future__ import annotations

import dataclasses
import json

import anthropic
import httpx2
import openai
import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from rollenv.agents.gateway.dialects import dialects, models
from rollenv.agents.gateway.messages import FunctionCall, Message, ModelAnswer, ModelRequest

CHAT, RESPONSES, MESSAGES = (dialects()[name] for name in ("chat", "responses", "messages"))
OF_PATHS = {dialect.paths[0]: dialect for dialect in (CHAT, RESPONSES, MESSAGES)}
DIALECTS = {**OF_PATHS, "gemini": dialects()["gemini"]}
IDS = list(OF_PATHS)
CALLS = (FunctionCall("call_1", "bash", '{ "command" :  "echo caf\\u00e9 1" }'), FunctionCall("call_2", "stop", "{}"))
NUMBERS = {"prompt_tokens": 20, "cached_tokens": 8, "completion_tokens": 5, "created": 1_700_000_000}
ANSWERS = {
    "text": ModelAnswer("\n I look\u2028now. \n", **NUMBERS),
    "empty": ModelAnswer("", **NUMBERS),
    "reasoned": ModelAnswer("Yes.", reasoning=" Let me think.\n\nThen act. ", **NUMBERS),
    "calls": ModelAnswer("", CALLS, finish="tool_calls", **NUMBERS),
    "all": ModelAnswer("I look.", CALLS, "Hm.", "tool_calls", **NUMBERS),
    "cut": ModelAnswer("I lo", finish="length", **NUMBERS),
    "stopped": ModelAnswer("I look. ", finish="stop_text", stop_text="Observation:", **NUMBERS),
    "truncated call": ModelAnswer(
        "", (FunctionCall("call_3", "bash", '{"command": "echo un'),), finish="tool_calls", **NUMBERS
    ),
    "malformed call": ModelAnswer(
        "", (FunctionCall("call_3", "bash", "{command: ls}"),), finish="tool_calls", **NUMBERS
    ),
    "call of a list": ModelAnswer("", (FunctionCall("call_3", "bash", "[1]"),), finish="tool_calls", **NUMBERS),
    "call with NaN": ModelAnswer("", (FunctionCall("call_3", "bash", '{"n": NaN}'),), finish="tool_calls", **NUMBERS),
}
every_answer = pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
every_dialect = pytest.mark.parametrize("dialect", OF_PATHS.values(), ids=OF_PATHS)


def nothing_stored(id_):
    return None


class Gateway:
    """SDK clients whose requests are read and answered by the dialects."""

    def __init__(self, answer=None, error=None, begun=False):
        self.answer, self.error, self.begun = answer, error, begun
        self.requests: list[ModelRequest] = []
        http = httpx2.Client(transport=httpx2.MockTransport(self._respond))
        self.openai = openai.OpenAI(base_url="http://gateway/v1", api_key="k", http_client=http, max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url="http://gateway", api_key="k", http_client=http, max_retries=0)

    def _respond(self, request):
        path = request.url.path.removeprefix("/v1/")
        if path == "models":
            return httpx2.Response(200, json=models(["policy", "other"]))
        dialect = OF_PATHS[path.removesuffix("/count_tokens")]
        read = dialect.read(json.loads(request.content), nothing_stored)
        self.requests.append(read)
        if path.endswith("count_tokens"):
            return httpx2.Response(200, json={"input_tokens": 42})
        if self.error and not self.begun:
            return httpx2.Response(dialect.status(self.error), json=dialect.error(self.error))
        if not read.stream:
            return httpx2.Response(200, json=dialect.response_body(self.answer, read))
        events = [dialect.error_event(self.error)] if self.error else dialect.response_events(self.answer, read)
        stream = b"".join([dialect.keepalive, dialect.keepalive, *events])
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)


ASKED = [{"role": "user", "content": "Look."}]


def same(message: Message) -> Message:
    """A message with its arguments in the form that Messages has for them."""

    def form(call):
        try:
            value = json.loads(call.arguments, parse_constant=float.fromhex)
        except ValueError:
            return call
        return dataclasses.replace(call, arguments=json.dumps(value))

    return dataclasses.replace(message, calls=tuple(map(form, message.calls)))


def parsed(stream) -> list[dict]:
    """The data of each event of a stream."""
    found = []
    for text in b"".join(stream).decode().split("\n\n")[:-1]:
        name, _, data = text.rpartition("data: ")
        if data != "[DONE]":
            found.append(json.loads(data))
            assert name in ("", f"event: {found[-1].get('type')}\n")
    return found


TYPES = (
    (CHAT, ChatCompletion, TypeAdapter(ChatCompletionChunk)),
    (RESPONSES, Response, TypeAdapter(ResponseStreamEvent)),
    (MESSAGES, AnthropicMessage, TypeAdapter(RawMessageStreamEvent)),
)
