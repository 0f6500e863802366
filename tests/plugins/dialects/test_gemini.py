"""Gemini's dialect against Google's own SDK and types, and against what clients may send."""

from __future__ import annotations

import base64
import json
import random

import pytest
from chats import TOOL, chats, junk, spoil
from hypothesis import given
from hypothesis import strategies as st
from vendors import every_answer, nothing_stored, parsed, same

from rollenv.agents.gateway.dialects import Known, dialects
from rollenv.agents.gateway.messages import GatewayError, ModelRequest

genai = pytest.importorskip("google.genai", reason="google-genai is not installed (the extra dev has it)")
types, errors = genai.types, genai.errors
GEMINI = dialects()["gemini"]
ASKED = [{"role": "user", "parts": [{"text": "Look."}]}]


def part(url):
    if url.startswith("data:"):
        kind, data = url.removeprefix("data:").split(";base64,")
        return types.Part(inline_data=types.Blob(mime_type=kind, data=base64.b64decode(data)))
    return types.Part(file_data=types.FileData(file_uri=url, mime_type="image/png"))


def written(chat, snake):
    """A chat as the SDK writes it, or with the names that Google's examples for curl have."""
    body, contents = {}, []
    for message in chat:
        images = [part(url) for url in message.images]
        texts = [types.Part(text=message.text)] if message.text or not (images or message.calls) else []
        if message.role == "assistant":
            thought = [types.Part(text=message.reasoning, thought=True)] if message.reasoning else []
            calls = [types.FunctionCall(id=c.id, name=c.name, args=json.loads(c.arguments)) for c in message.calls]
            parts = [*thought, *texts, *images, *(types.Part(function_call=call) for call in calls)]
            contents.append(types.Content(role="model", parts=parts))
        elif message.role == "tool":
            result = types.FunctionResponse(id=message.call_id, name="bash", response={"output": message.text})
            contents.append(types.Content(role="user", parts=[types.Part(function_response=result)]))
        elif message.role == "system":
            body["system_instruction" if snake else "systemInstruction"] = types.Content(parts=texts)
        else:
            contents.append(types.Content(role="user", parts=[*texts, *images]))
    body["contents"] = contents
    return {
        key: [one.model_dump(mode="json", exclude_none=True, by_alias=not snake) for one in value]
        if isinstance(value, list)
        else value.model_dump(mode="json", exclude_none=True, by_alias=not snake)
        for key, value in body.items()
    }


@given(chat=chats(), snake=st.booleans())
def test_a_chat_that_a_client_writes_is_read_as_it_was(chat, snake):
    first = [message for message in chat[:1] if message.role == "system"]
    kept = [m for m in chat if m.role != "system" and not (m.role == "tool" and m.images)]
    read = GEMINI.read(written([*first, *kept], snake), nothing_stored).messages
    assert list(map(same, read)) == list(map(same, [*first, *kept]))


def test_results_without_ids_answer_the_calls_of_their_names_in_order():
    """The SDK's automatic calls have no ids in their results."""
    calls = [{"functionCall": {"name": name, "args": {}}} for name in ("bash", "stop", "bash")]
    results = [
        {"functionResponse": {"name": name, "response": told}}
        for name, told in (("stop", {"result": "s"}), ("bash", {"output": "1"}), ("bash", {"error": "2"}))
    ]
    chat = [*ASKED, {"role": "model", "parts": calls}, {"role": "user", "parts": results}]
    _, said, *told = GEMINI.read({"contents": chat}, nothing_stored, Known()).messages
    first, second, third = (call.id for call in said.calls)
    assert len({first, second, third}) == 3
    assert [(message.call_id, message.text) for message in told] == [
        (second, "s"),
        (first, "1"),
        (third, '{"error":"2"}'),
    ]


@every_answer
def test_answers_are_of_googles_types_and_come_back_as_they_were(answer):
    request = ModelRequest((), model="m")
    (event,) = parsed(GEMINI.response_events(answer, request))
    assert event == GEMINI.response_body(answer, request)
    whole = types.GenerateContentResponse.model_validate(event)
    assert whole.usage_metadata.total_token_count == 25
    ends = {"length": types.FinishReason.MAX_TOKENS}
    assert whole.candidates[0].finish_reason == ends.get(answer.finish, types.FinishReason.STOP)
    content = whole.candidates[0].content.model_dump(mode="json", exclude_none=True, by_alias=True)
    (back,) = GEMINI.read({"contents": [content]}, nothing_stored).messages
    assert same(back) == same(answer.message)


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        (None, "auto"),
        ({"mode": "AUTO"}, "auto"),
        ({"mode": "NONE"}, "none"),
        ({"mode": "ANY"}, "required"),
        ({"mode": "ANY", "allowedFunctionNames": ["bash"]}, "bash"),
        ({"mode": "ANY", "allowedFunctionNames": ["bash", "stop"]}, "required"),
        ({"mode": "ANY", "allowedFunctionNames": ["none", "bash"]}, None),
        ({"mode": "ANY", "allowedFunctionNames": ["none"]}, None),
        ({"mode": "MOST"}, None),
    ],
)
def test_tools_and_the_choice_among_them(config, choice):
    schema = {"type": "OBJECT", "properties": {"command": {"type": "STRING"}, "type": {"type": "INTEGER"}}}
    declared = [{"name": "bash", "description": "Run.", "parameters": schema}]
    declared += [{"name": "stop", "parametersJsonSchema": TOOL["parameters"]}]
    body = {"contents": ASKED, "tools": [{"functionDeclarations": declared}, {"googleSearch": {}}]}
    body |= {"toolConfig": {"functionCallingConfig": config}} if config else {}
    if choice is None:
        with pytest.raises(GatewayError):
            GEMINI.read(body, nothing_stored)
        return
    request = GEMINI.read(body, nothing_stored)
    assert request.tool_choice == choice
    assert [tool["function"]["name"] for tool in request.tools] == ["bash", "stop"]
    assert request.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"command": {"type": "string"}, "type": {"type": "integer"}},
    }
    assert request.tools[1]["function"]["parameters"] == TOOL["parameters"]


def test_data_beside_a_result_belong_to_it():
    data = {"inlineData": {"mimeType": "image/png", "data": "AA_-"}}
    named = {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://a/b.pdf"}}
    result = {"id": "c1", "name": "read", "response": {"output": "two files"}, "parts": [data, named]}
    body = {"contents": [*ASKED, {"role": "user", "parts": [{"functionResponse": result}]}]}
    message = GEMINI.read(body, nothing_stored).messages[-1]
    assert message.images == ("data:image/png;base64,AA/+",)
    assert message.text.startswith("two files\n[input_file: ")
    assert "b.pdf" in message.text


def test_settings_are_read():
    config = {"temperature": 0.5, "topP": 1, "maxOutputTokens": 7, "stopSequences": ["a"], "candidateCount": 1}
    request = GEMINI.read({"contents": ASKED, "generationConfig": config}, nothing_stored)
    assert (request.temperature, request.top_p, request.max_tokens, request.stop) == (0.5, 1, 7, ("a",))


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ({"inlineData": {"mimeType": "audio/wav", "data": "AA"}}, "[input_file: audio/wav]"),
        ({"inlineData": {"mimeType": "text/plain", "data": "RGVhciBBbm4="}}, "Dear Ann"),
        ({"fileData": {"mimeType": "application/pdf", "fileUri": "https://a/b"}}, "[input_file: https://a/b]"),
        ({"executableCode": {"code": "1"}, "thoughtSignature": "s"}, '{"executableCode":{"code":"1"}}'),
        ({"codeExecutionResult": {"outcome": "OK"}}, '{"codeExecutionResult":{"outcome":"OK"}}'),
    ],
)
def test_what_is_neither_text_nor_image_is_shown(part, shown):
    request = GEMINI.read({"contents": [{"role": "user", "parts": [part]}]}, nothing_stored)
    assert (request.messages[0].text, request.messages[0].images) == (shown, ())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "contents"),
        ({"contents": "hi"}, "contents"),
        ({"contents": [{"role": "system", "parts": []}]}, "user or model"),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "text/plain", "data": "%"}}]}]}, "base64"),
        ({"contents": ASKED, "generationConfig": {"candidateCount": 2}}, "candidateCount"),
    ],
)
def test_what_cannot_be_read_is_refused(body, words):
    with pytest.raises(GatewayError, match=words):
        GEMINI.read(body, nothing_stored)


@given(found=junk, chat=chats(), seed=st.integers(0))
def test_any_json_is_read_or_refused(found, chat, seed):
    chance = random.Random(seed)
    body = {
        **written([m for m in chat if not (m.role == "tool" and m.images)], False),
        "tools": [{"functionDeclarations": [TOOL]}],
    }
    spoil(body, found, chance, ("role", "parts"))
    try:
        GEMINI.read(body, nothing_stored)
    except GatewayError as error:
        json.dumps(GEMINI.error(error), allow_nan=False)
