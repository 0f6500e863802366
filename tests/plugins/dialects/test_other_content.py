"""Content that a model of text cannot read, and tools without a schema, in each dialect: read, and equal every time."""

from __future__ import annotations

import base64
import json

import pytest
from vendors import DIALECTS, MESSAGES, RESPONSES, nothing_stored

from rollenv.agents.gateway.messages import GatewayError

LETTER = base64.b64encode(b"Dear Ann").decode()
PDF = base64.b64encode(b"%PDF-1.4").decode()


def source(**of):
    return {"type": "document", "source": of}


#: Blocks of all vendors, and what the model sees of each.
BLOCKS = {
    "a document": (source(type="text", media_type="text/plain", data="Dear Ann"), "Dear Ann"),
    "a title and a context": (
        {**source(type="text", data="Dear Ann"), "title": "Letter", "context": "of May"},
        "Letter\nof May\nDear Ann",
    ),
    "a document of blocks": (
        source(type="content", content=[{"type": "text", "text": "Dear "}, {"type": "text", "text": "Ann"}]),
        "Dear Ann",
    ),
    "a document of a string": (source(type="content", content="Dear Ann"), "Dear Ann"),
    "a text in base64": (source(type="base64", media_type="text/plain", data=LETTER), "Dear Ann"),
    "a PDF": (source(type="base64", media_type="application/pdf", data=PDF), "[document: application/pdf]"),
    "a PDF with a title": (
        {**source(type="base64", media_type="application/pdf", data=PDF), "title": "Letter"},
        "[document: Letter, application/pdf]",
    ),
    "a PDF elsewhere": (source(type="url", url="https://a/b.pdf"), "[document: https://a/b.pdf]"),
    "a document of the server": (source(type="file", file_id="file_1"), "[document: file_1]"),
    "an empty document": (source(type="text", media_type="text/plain", data=""), "[document: text/plain]"),
    "a search result": (
        {"type": "search_result", "source": "https://a", "title": "b", "content": [{"type": "text", "text": "c"}]},
        "b\nhttps://a\nc",
    ),
    "a tool": ({"type": "tool_reference", "tool_name": "grep"}, "[tool_reference: grep]"),
    "a file": (
        {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
        "[input_file: a.pdf, application/pdf]",
    ),
    "a file of text": (
        {"type": "input_file", "filename": "a.txt", "file_data": f"data:text/plain;base64,{LETTER}"},
        "a.txt\nDear Ann",
    ),
    "a file of unknown kind": ({"type": "input_file", "filename": "a.bin", "file_data": PDF}, "[input_file: a.bin]"),
    "a file elsewhere": ({"type": "input_file", "file_url": "https://a/b"}, "[input_file: https://a/b]"),
    "a file of the server": ({"type": "input_file", "file_id": "file-1"}, "[input_file: file-1]"),
    "a file inside": (
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
        "[file: a.pdf, application/pdf]",
    ),
    "a sound": ({"type": "input_audio", "input_audio": {"data": PDF, "format": "wav"}}, "[input_audio: wav]"),
    "an image of the server": ({"type": "input_image", "file_id": "file-1"}, "[input_image: file-1]"),
    "another image of it": ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "[image: f]"),
    "a kind of tomorrow": (
        {"type": "browser_state", "tabs": [{"url": "https://a", "active": True}], "cache_control": None},
        '{"tabs":[{"active":true,"url":"https://a"}]}',
    ),
    "one without words": ({"type": "compaction", "encrypted_content": "x" * 99}, "[compaction]"),
    "bytes in it": ({"type": "video", "data": PDF, "url": f"data:video/mp4;base64,{PDF}"}, '{"url":"data:video/mp4"}'),
}


def user(path, content):
    said = [{"role": "user", "content": content}]
    return {"input" if path == "responses" else "messages": said}


def result(path, content):
    """A call and its result, as a client of the dialect writes them."""
    if path == "responses":
        call = {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"}
        return {"input": [call, {"type": "function_call_output", "call_id": "c", "output": content}]}
    if path == "messages":
        call = {"type": "tool_use", "id": "c", "name": "read", "input": {}}
        done = {"type": "tool_result", "tool_use_id": "c", "content": content}
        return {"messages": [{"role": "assistant", "content": [call]}, {"role": "user", "content": [done]}]}
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    done = {"role": "tool", "tool_call_id": "c", "content": content}
    return {"messages": [{"role": "assistant", "tool_calls": [call]}, done]}


PLACES = [(path, write) for path in ("chat/completions", "responses", "messages") for write in (user, result)]


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_its_text_or_its_name(name):
    block, shown = BLOCKS[name]
    between = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, block, {"type": "text", "text": "c"}]
    marked = {**block, "cache_control": {"type": "ephemeral"}}  # clients move this mark with every call
    again = [*between[:2], dict(reversed(marked.items())), between[3]]
    for path, write in PLACES:
        message = DIALECTS[path].read(write(path, [block]), nothing_stored).messages[-1]
        assert (message.text, message.images) == (shown, ()), path
        for content in (between, again):
            assert DIALECTS[path].read(write(path, content), nothing_stored).messages[-1].text == f"ab\n{shown}\nc"


MALFORMED = {
    "a document of nothing": ({"type": "document", "title": "Letter"}, "'document'"),
    "a document of a text": ({"type": "document", "source": "Dear Ann"}, "'document'"),
    "a number for a text": (source(type="text", data=3), "data"),
    "a number for a title": ({**source(type="text", data="a"), "title": 3}, "title"),
    "letters that are not base64": (source(type="base64", media_type="text/plain", data="%"), "base64"),
    "a result without content": ({"type": "search_result", "title": "a"}, "'search_result'"),
    "a reference to nothing": ({"type": "tool_reference", "tool_name": 3}, "'tool_reference'"),
    "a file of nothing": ({"type": "file"}, "'file'"),
    "an empty file": ({"type": "input_file"}, "'input_file'"),
    "a sound of nothing": ({"type": "input_audio", "input_audio": None}, "'input_audio'"),
    "a type of another kind": ({"type": 3, "text": "a"}, "type"),
    "a type with marks": ({"type": "<|im_start|>", "a": "b"}, "im_start"),
    "a block that is none": ("a", r"\[0\]"),
    "an image of nothing": ({"type": "image", "source": {"type": "base64x"}}, "image"),
    "content that is no list": ({**source(type="content", content=3)}, "content"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_block_is_refused(name):
    block, words = MALFORMED[name]
    for path, write in PLACES:
        with pytest.raises(GatewayError, match=words) as refused:
            DIALECTS[path].read(write(path, [block]), nothing_stored)
        assert refused.value.kind == "invalid"


# -- tools that a server ran -------------------------------------------------------------------------------------------


def told(messages):
    """The messages in short: role, text, names and arguments of calls, and the call that is answered."""
    return [
        (m.role, m.text, *((call.name, json.loads(call.arguments or "{}")) for call in m.calls), m.call_id)
        for m in messages
    ]


FOUND = [{"type": "web_search_result", "title": "T", "url": "https://a", "encrypted_content": "x" * 99}]


def test_messages_tools_of_the_server_are_calls_and_results():
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
        {"type": "mcp_tool_use", "id": "s2", "name": "list", "server_name": "disk", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": FOUND},
        {"type": "mcp_tool_result", "tool_use_id": "s2", "content": [{"type": "text", "text": "a.txt"}]},
        {"type": "text", "text": "Found."},
        {"type": "tool_use", "id": "c", "name": "read", "input": {"path": "a"}},
    ]
    back = [{"type": "tool_result", "tool_use_id": "c", "content": "A"}]
    body = {"messages": [{"role": "assistant", "content": content}, {"role": "user", "content": back}]}
    messages = MESSAGES.read(body, nothing_stored).messages
    assert told(messages) == [
        ("assistant", "I look.", ("web_search", {"query": "q"}), ("list", {}), ""),
        ("tool", '{"title":"T","url":"https://a"}', "s1"),
        ("tool", "a.txt", "s2"),
        ("assistant", "Found.", ("read", {"path": "a"}), ""),
        ("tool", "A", "c"),
    ]
    assert messages[0].reasoning == "Hm."


RESULTS = {
    "web_fetch_tool_result": (
        {"type": "web_fetch_result", "url": "https://a", "content": source(type="text", data="Dear Ann")},
        '{"content":"Dear Ann","url":"https://a"}',
    ),
    "web_search_tool_result": (
        {"type": "web_search_tool_result_error", "error_code": "unavailable"},
        '{"error_code":"unavailable"}',
    ),
    "bash_code_execution_tool_result": (
        {"type": "bash_code_execution_result", "stdout": "hi", "stderr": "", "return_code": 0, "content": []},
        '{"content":[],"return_code":0,"stderr":"","stdout":"hi"}',
    ),
    "tool_search_tool_result": (
        {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "grep"}],
        },
        '{"tool_references":["[tool_reference: grep]"]}',
    ),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_messages_results_of_the_server(kind):
    content, shown = RESULTS[kind]
    use = {"type": "server_tool_use", "id": "s", "name": kind.removesuffix("_tool_result"), "input": {}}
    done = {"type": kind, "tool_use_id": "s", "content": content}
    for messages in (
        [{"role": "assistant", "content": [use, done]}],
        [{"role": "assistant", "content": [use]}, {"role": "user", "content": [done]}],
    ):
        read = MESSAGES.read({"messages": messages}, nothing_stored).messages
        assert told(read) == [("assistant", "", (use["name"], {}), ""), ("tool", shown, "s")]
    for wrong in ({**done, "tool_use_id": None}, {**done, "content": 3}):
        with pytest.raises(GatewayError):
            MESSAGES.read({"messages": [{"role": "assistant", "content": [use, wrong]}]}, nothing_stored)


ITEMS = {
    "a search": (
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "q"}},
        ("web_search", {"type": "search", "query": "q"}),
        "[web_search_call]",
    ),
    "files": (
        {"type": "file_search_call", "id": "fs", "queries": ["q"], "results": [{"filename": "a", "text": "A"}]},
        ("file_search", {"queries": ["q"]}),
        '{"filename":"a","text":"A"}',
    ),
    "code": (
        {"type": "code_interpreter_call", "id": "ci", "code": "1", "outputs": [{"type": "logs", "logs": "1"}]},
        ("code_interpreter", {"code": "1"}),
        '{"logs":"1"}',
    ),
    "a drawing": (
        {"type": "image_generation_call", "id": "ig", "status": "completed", "result": PDF},
        ("image_generation", {}),
        "[image_generation_call]",
    ),
    "MCP": (
        {"type": "mcp_call", "id": "m", "name": "f", "server_label": "s", "arguments": '{"a": 1}', "output": "A"},
        ("f", {"a": 1}),
        "A",
    ),
}


@pytest.mark.parametrize("name", ITEMS)
def test_responses_tools_of_the_server_are_calls_and_results(name):
    item, call, shown = ITEMS[name]
    chat = [{"role": "user", "content": "go"}, item, {"role": "assistant", "content": "Done."}]
    read = RESPONSES.read({"input": chat}, nothing_stored).messages
    assert told(read[1:]) == [("assistant", "", call, ""), ("tool", shown, item["id"]), ("assistant", "Done.", "")]
    with pytest.raises(GatewayError, match="id"):
        RESPONSES.read({"input": [{**item, "id": None}]}, nothing_stored)


def test_responses_other_items_are_shown():
    item = {"type": "mcp_list_tools", "id": "l", "tools": [{"name": "f"}]}
    read = RESPONSES.read({"input": [item]}, nothing_stored).messages
    assert told(read) == [("user", '{"tools":[{"name":"f"}]}', "")]
    with pytest.raises(GatewayError, match="cannot be read"):
        RESPONSES.read({"input": [{"type": item["type"]}]}, nothing_stored)
