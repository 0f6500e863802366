"""What clients write in the three dialects is read as it was meant, or refused with its place."""

from __future__ import annotations

import dataclasses
import json
import math
import random

import pytest
from chats import FUNCTION, TOOL, Writer, chats, junk, spoil
from hypothesis import given
from hypothesis import strategies as st
from vendors import ANSWERS, ASKED, CHAT, DIALECTS, IDS, RESPONSES, every_dialect, nothing_stored

from rollenv.agents.gateway.messages import FunctionCall, GatewayError, Message, ModelAnswer, ModelRequest


@pytest.mark.parametrize("path", IDS)
@given(chat=chats(), seed=st.integers(0))
def test_a_chat_that_a_client_writes_is_read_as_it_was(path, chat, seed):
    write = getattr(Writer(seed), path.split("/")[0])
    assert DIALECTS[path].read(write(chat), nothing_stored).messages == chat


OFFERS = {
    "chat/completions": (
        [{"type": "function", "function": {**TOOL, "strict": True}}],
        {"auto": "auto", "none": "none", "required": "required"},
        {"type": "function", "function": {"name": "bash"}},
    ),
    "responses": (
        [{"type": "function", **TOOL, "strict": None}, {"type": "web_search"}],
        {"auto": "auto", "none": "none", "required": "required"},
        {"type": "function", "name": "bash"},
    ),
    "messages": (
        [
            {"name": "bash", "description": "Run.", "input_schema": TOOL["parameters"], "defer_loading": True},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}},
        {"type": "tool", "name": "bash"},
    ),
}


@pytest.mark.parametrize("path", IDS)
def test_tools_and_the_choice_among_them(path):
    offered, choices, one = OFFERS[path]
    body = {"messages": ASKED, "input": ASKED, "tools": offered}
    strict = {"strict": True} if path == "chat/completions" else {}
    assert DIALECTS[path].read(body, nothing_stored).tools == ({**FUNCTION, **strict},)
    for name, choice in {**choices, "bash": one}.items():
        assert DIALECTS[path].read({**body, "tool_choice": choice}, nothing_stored).tool_choice == name
    for wrong in ({**one, "name": "other", "function": {"name": "other"}}, "most", 3, {"type": "mcp"}):
        with pytest.raises(GatewayError, match="tool_choice"):
            DIALECTS[path].read({**body, "tool_choice": wrong}, nothing_stored)
    with pytest.raises(GatewayError, match="tool_choice"):
        DIALECTS[path].read({**body, "tools": [], "tool_choice": choices["required"]}, nothing_stored)


def test_functions_in_namespaces_keep_them():
    inner = {"type": "namespace", "name": "agents", "description": "d", "tools": [{"type": "function", **TOOL}]}
    call = {"type": "function_call", "call_id": "call_1", "name": "bash", "namespace": "agents", "arguments": "{}"}
    request = RESPONSES.read({"input": [*ASKED, call], "tools": [inner]}, nothing_stored)
    assert request.tools == ({**FUNCTION, "namespace": "agents"},)
    assert request.messages[1].calls == (FunctionCall("call_1", "bash", "{}", "agents"),)


SETTINGS = {
    "chat/completions": {"max_completion_tokens": 7, "stop": ["a", "b"]},
    "responses": {"max_output_tokens": 7, "stop": ["a", "b"]},
    "messages": {"max_tokens": 7, "stop_sequences": ["a", "b"]},
}


@pytest.mark.parametrize("path", IDS)
def test_settings_are_read(path):
    asked = {"input" if path == "responses" else "messages": ASKED}
    sent = {"temperature": 0.5, "top_p": 1, "stream": True, "model": "m"}
    request = DIALECTS[path].read({**asked, **sent, **SETTINGS[path]}, nothing_stored)
    assert (request.temperature, request.top_p, request.stream, request.model) == (0.5, 1, True, "m")
    assert (request.max_tokens, request.stop) == (7, ("a", "b"))
    nothing = dict.fromkeys([*sent, *SETTINGS[path], "thread", "reasoning"])
    request = DIALECTS[path].read({**asked, **nothing}, nothing_stored)
    assert request == dataclasses.replace(
        ModelRequest((Message("user", "Look."),)), include_usage=path != "chat/completions"
    )


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
#: The same wishes in the words of each dialect.
WISHES = {
    "chat/completions": {
        **{"response_format": FORMAT, "reasoning_effort": "low", "parallel_tool_calls": False, "seed": 1},
        **{"frequency_penalty": 0.5, "logit_bias": {"5": -100}},
    },
    "responses": {
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}},
        **{"reasoning": {"effort": "low", "summary": "auto"}, "parallel_tool_calls": False, "truncation": "auto"},
    },
    "messages": {
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"},
        **{"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "context_management": {"edits": [1]}},
    },
    "gemini": {
        "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA, "seed": 1},
        "safetySettings": [{"category": "x"}],
    },
}


@pytest.mark.parametrize("path", WISHES)
def test_what_an_endpoint_may_know_is_read_and_the_rest_named(path):
    asked = {"input": ASKED, "messages": ASKED, "contents": [{"parts": [{"text": "Look."}]}]}
    key = {"responses": "input", "gemini": "contents"}.get(path, "messages")
    request = DIALECTS[path].read({key: asked[key], **WISHES[path]}, nothing_stored)
    assert request.more["response_format"] == FORMAT
    if path == "gemini":
        assert request.more["seed"] == 1
    else:
        assert (request.more["reasoning_effort"], request.more["parallel_tool_calls"]) == ("low", False)
    if path == "responses":
        answered = DIALECTS[path].response_body(ModelAnswer("{}"), request)
        assert answered["text"] == WISHES[path]["text"]  # clients parse by it
    named = {"responses": ["truncation"], "messages": ["context_management"], "gemini": ["safetySettings"]}
    assert [*request.ignored] == named.get(path, [])


@pytest.mark.parametrize(("path", "field"), [
    ("messages", {"thread": {"type": "create"}}), ("messages", {"thread": {"type": "continue"}}),
    ("messages", {"container": "container_1"}), ("messages", {"compaction": {"type": "x"}}),
    ("messages", {"previous_message_id": "msg_1"}),
    ("responses", {"conversation": "conv_1"}), ("responses", {"prompt": {"id": "p"}}),
    ("responses", {"background": True}),
    ("responses", {"input": [{"type": "compaction", "encrypted_content": "x"}]}),
    ("chat/completions", {"thread_id": "t"}), ("chat/completions", {"continue_from": 3}),
    ("chat/completions", {"messages": [{"role": "assistant", "audio": {"id": "a"}}]}),
    ("chat/completions", {"functions": [{"name": "f"}]}), ("gemini", {"cachedContent": "cachedContents/1"}),
])  # fmt: skip
def test_references_to_what_is_not_kept_are_refused(path, field):
    asked = {"input": ASKED} if path == "responses" else {"messages": ASKED}
    if path == "gemini":
        asked = {"contents": [{"parts": [{"text": "Look."}]}]}
    with pytest.raises(GatewayError) as refused:
        DIALECTS[path].read({**asked, **field}, nothing_stored)
    assert refused.value.kind == "invalid"
    if "thread" in field:  # by which SDKs know to send the whole chat
        details = DIALECTS[path].error(refused.value)["error"]["details"]
        assert details == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


IMAGE = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
WRONG = {
    "no messages": ({}, "messages|input"),
    "empty messages": ({"messages": [], "input": []}, "messages|input"),
    "messages of another type": ({"messages": {"a": 1}, "input": 3}, "messages|input"),
    "a message that is no object": ({"messages": ["a"], "input": ["a"]}, r"\[0\]"),
    "a role": ({"messages": [{"role": "me"}], "input": [{"role": "me"}]}, r"\[0\].role"),
    "a content": ({"messages": [{"role": "user", "content": 3}], "input": [{"role": "user", "content": 3}]}, "content"),
    "an image on disk": (
        {"messages": [{"role": "user", "content": [IMAGE]}], "input": [{"role": "user", "content": [IMAGE]}]},
        r"\[0\].content\[0\]",
    ),
    "a sound": (
        {
            "messages": [{"role": "user", "content": [{"type": "input_audio"}]}],
            "input": [{"role": "user", "content": [{"type": "input_audio"}]}],
        },
        "'input_audio'",
    ),
    "true for a number": ({"temperature": True}, "temperature"),
    "a large number": ({"temperature": 10**400}, "temperature"),
    "NaN": ({"temperature": math.nan}, "NaN"),
    "Infinity inside": ({"tools": [{"parameters": {"maximum": math.inf}}]}, "Infinity"),
    "a negative number": ({"top_p": -1}, "top_p"),
    "no tokens": ({"max_tokens": 0, "max_output_tokens": 0}, "max_(output_)?tokens"),
    "half a token": ({"max_tokens": 1.5, "max_output_tokens": 1.5}, "max_(output_)?tokens"),
    "a text for a number": ({"max_tokens": "7", "max_output_tokens": "7"}, "max_(output_)?tokens"),
    "stream": ({"stream": "yes"}, "stream"),
    "many stop texts": ({"stop": ["a"] * 17, "stop_sequences": ["a"] * 17}, "stop"),
    "an empty stop text": ({"stop": [""], "stop_sequences": [""]}, "stop"),
    "a tool without a name": (
        {"tools": [{"type": "function", "function": {}}, {"input_schema": {}}]},
        r"tools\[[01]\](.function)?.name",
    ),
}


@every_dialect
@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_a_request_that_cannot_be_read_is_refused_with_its_place(dialect, case):
    wrong, words = case
    alone = "messages" in wrong or not wrong
    body = wrong if alone else {"messages": ASKED, "input": ASKED, **wrong}
    with pytest.raises(GatewayError, match=words) as refused:
        dialect.read(body, nothing_stored)
    assert (refused.value.kind, dialect.status(refused.value)) == ("invalid", 400)


@pytest.mark.parametrize("n", [2, 0, True, "1"])
def test_more_answers_than_one_are_refused(n):
    assert CHAT.read({"messages": ASKED, "n": 1}, nothing_stored)
    with pytest.raises(GatewayError, match="n:"):
        CHAT.read({"messages": ASKED, "n": n}, nothing_stored)


@every_dialect
def test_deep_nesting_is_refused_and_half_characters_are_replaced(dialect):
    deep = []
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(GatewayError, match="nested"):
        dialect.read({"messages": deep}, nothing_stored)
    said = [{"role": "user", "content": "cut \ud83d"}]
    (message,) = dialect.read({"messages": said, "input": said}, nothing_stored).messages
    assert message.text == "cut \ufffd"


@st.composite
def spoilt(draw):
    """The body of a client with junk somewhere, or junk alone."""
    found, chat, seed = draw(junk), draw(chats()), draw(st.integers(0))
    chance = random.Random(seed)
    body = {"messages": ASKED, "input": ASKED, "tools": [FUNCTION]}
    for write in (Writer.chat, Writer.responses, Writer.messages):
        body |= {key: value for key, value in write(Writer(seed), chat).items() if chance.random() < 0.5}
    spoil(body := json.loads(json.dumps(body)), found, chance, ("type", "id"))
    return chance.choice([body, body, body, found])


@pytest.mark.combinations
@every_dialect
@given(body=spoilt())
def test_any_json_is_read_or_refused(dialect, body):
    stored = {"1": ANSWERS["all"]}.get
    try:
        result = dataclasses.asdict(dialect.read(body, stored))
    except GatewayError as error:
        result = dialect.error(error)
    json.dumps(result, allow_nan=False, ensure_ascii=False).encode()


# -- references to earlier answers -------------------------------------------------------------------------------------


def test_references_lead_back_to_the_answer():
    answer = ANSWERS["all"]
    stored = {answer.id: answer, "call_1": answer, "call_2": answer}.get
    items = RESPONSES.response_body(answer, ModelRequest(()))["output"]
    for typed in ({"type": "item_reference"}, {}):
        references = [{**typed, "id": item["id"]} for item in items]
        assert RESPONSES.read({"input": [*ASKED, *references]}, stored).messages[1] == answer.message
    mixed = [{"type": "item_reference", "id": items[0]["id"]}, *items[1:]]
    assert RESPONSES.read({"input": mixed}, stored).messages == (answer.message,)
    request = RESPONSES.read({"input": "Go on.", "previous_response_id": f"resp_{answer.id}"}, stored)
    assert (request.previous, request.messages) == (answer.id, (Message("user", "Go on."),))


@pytest.mark.parametrize(
    "body",
    [
        {"input": "Go on.", "previous_response_id": "resp_0"},
        {"input": [{"type": "item_reference", "id": "msg_0"}]},
        {"input": [{"type": "item_reference", "id": "what"}]},
        {"input": [{"type": "item_reference", "id": "fc_1"}]},
    ],
)
def test_references_to_nothing_are_not_found(body):
    with pytest.raises(GatewayError, match="items") as refused:
        RESPONSES.read(body, {"1": ANSWERS["all"]}.get)
    assert RESPONSES.status(refused.value) == 404


def said(*parts):
    """Items of an assistant: m for a message, r for reasoning, c for a call, each with its text."""
    items = []
    for kind, text in parts:
        if kind == "m":
            items.append({"role": "assistant", "content": text})
        elif kind == "r":
            items.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]})
        elif kind == "c":
            items.append({"type": "function_call", "call_id": text, "name": "f", "arguments": "{}"})
        else:
            items.append({"type": "item_reference", "id": text})
    return items


STORED = ModelAnswer("told", (), "thought", id="7")
CALL_1 = FunctionCall("1", "f", "{}")
ROWS = {
    "one answer": ([("r", "t"), ("m", "a"), ("c", "1")], [Message("assistant", "a", (CALL_1,), reasoning="t")]),
    "thoughts in two items": ([("r", "t"), ("r", "u"), ("m", "a")], [Message("assistant", "a", reasoning="tu")]),
    "a call before the words": (
        [("r", "t"), ("c", "1"), ("m", "a")],
        [Message("assistant", "a", (CALL_1,), reasoning="t")],
    ),
    "two messages": ([("m", "a"), ("m", "b")], [Message("assistant", "a"), Message("assistant", "b")]),
    "an empty message": ([("m", ""), ("m", "b")], [Message("assistant", ""), Message("assistant", "b")]),
    "an empty message before an answer": (
        [("m", ""), ("r", "t"), ("m", "b")],
        [Message("assistant", ""), Message("assistant", "b", reasoning="t")],
    ),
    "answers in a row": (
        [("r", "t"), ("m", "a"), ("r", "u"), ("m", "b"), ("c", "1")],
        [Message("assistant", "a", reasoning="t"), Message("assistant", "b", (CALL_1,), reasoning="u")],
    ),
    "a call, then an answer": (
        [("c", "1"), ("r", "t"), ("m", "a")],
        [Message("assistant", "", (CALL_1,)), Message("assistant", "a", reasoning="t")],
    ),
    "referred to": (
        [("m", "a"), ("i", "rs_7"), ("i", "msg_7"), ("i", "msg_7")],
        [Message("assistant", "a"), Message("assistant", "told", reasoning="thought"), Message("assistant", "told")],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_neighbouring_items_are_one_answer_or_two(name):
    parts, wanted = ROWS[name]
    body = {
        "model": "m",
        "input": [{"role": "user", "content": "hi"}, *said(*parts), {"role": "user", "content": "on"}],
    }
    got = RESPONSES.read(body, {"7": STORED}.get).messages
    assert got == (Message("user", "hi"), *wanted, Message("user", "on"))
