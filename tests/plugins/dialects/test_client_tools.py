"""Tools that clients run themselves and name by a type: the model is offered functions, clients get their form."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter
from vendors import ASKED, CHAT, DIALECTS, MESSAGES, RESPONSES, TYPES, Gateway, nothing_stored, parsed

from rollenv.agents.gateway.messages import FunctionCall, GatewayError, ModelAnswer

GRAMMAR = 'start: "a"+'
PATCH = "*** Begin Patch\n*** Add File: caf\u00e9\n+hi\n*** End Patch\n"
CUSTOM = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Takes a patch as it is.",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
CHAT_CUSTOM = {
    "type": "custom",
    "custom": {
        **{key: CUSTOM[key] for key in ("name", "description")},
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": GRAMMAR}},
    },
}
EXEC = {"type": "exec", "command": ["ls", "-l"], "env": {}}
UPDATE = {"type": "update_file", "path": "a", "diff": "-b\n+c"}
DELETE = {"type": "delete_file", "path": "a"}
#: A tool, its name, the model's arguments, and the call that the client receives.
FORMS = {
    "custom": (RESPONSES, CUSTOM, "apply_patch", {"input": PATCH}, {"type": "custom_tool_call", "input": PATCH}),
    "no input": (RESPONSES, CUSTOM, "apply_patch", {"input": ""}, {"type": "custom_tool_call", "input": ""}),
    "local_shell": (
        RESPONSES,
        {"type": "local_shell"},
        "local_shell",
        {"command": ["ls", "-l"]},
        {"type": "local_shell_call", "action": EXEC},
    ),
    "local_shell, all": (
        RESPONSES,
        {"type": "local_shell"},
        "local_shell",
        {"command": ["ls"], "env": {"A": "b"}, "timeout_ms": 5, "working_directory": "/", "user": "me"},
        {
            "type": "local_shell_call",
            "action": {
                "type": "exec",
                "command": ["ls"],
                "env": {"A": "b"},
                "timeout_ms": 5,
                "working_directory": "/",
                "user": "me",
            },
        },
    ),
    "shell": (
        RESPONSES,
        {"type": "shell", "environment": {"type": "local"}},
        "shell",
        {"commands": ["ls", "pwd"], "timeout_ms": 9},
        {"type": "shell_call", "action": {"commands": ["ls", "pwd"], "timeout_ms": 9, "max_output_length": None}},
    ),
    "apply_patch": (
        RESPONSES,
        {"type": "apply_patch"},
        "apply_patch",
        UPDATE,
        {"type": "apply_patch_call", "operation": UPDATE, "status": "completed"},
    ),
    "apply_patch, delete": (
        RESPONSES,
        {"type": "apply_patch"},
        "apply_patch",
        DELETE,
        {"type": "apply_patch_call", "operation": DELETE, "status": "completed"},
    ),
    "chat": (CHAT, CHAT_CUSTOM, "apply_patch", {"input": PATCH}, {"type": "custom"}),
}


def answers(client, dialect, tool, stream):
    """The calls that an SDK receives, as plain data."""
    if dialect is RESPONSES and stream:
        with client.openai.responses.stream(model="m", input=ASKED, tools=[tool]) as events:
            *_, last = events
        return [item.model_dump(mode="json") for item in last.response.output]
    if dialect is RESPONSES:
        response = client.openai.responses.create(model="m", input=ASKED, tools=[tool])
        return [item.model_dump(mode="json") for item in response.output]
    if not stream:
        completion = client.openai.chat.completions.create(model="m", messages=ASKED, tools=[tool])
        return [call.model_dump(mode="json") for call in completion.choices[0].message.tool_calls]
    calls = {}
    for chunk in client.openai.chat.completions.create(model="m", messages=ASKED, tools=[tool], stream=True):
        for delta in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
            piece = delta.model_dump(mode="json", exclude_none=True)
            call = calls.setdefault(piece.pop("index"), {"custom": {"name": "", "input": ""}})
            for key in ("name", "input"):
                call["custom"][key] += piece.get("custom", {}).get(key, "")
            call |= {key: piece[key] for key in ("id", "type") if key in piece}
    return [*calls.values()]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", FORMS)
def test_a_call_reaches_the_client_in_its_form_and_is_read_back(name, stream):
    dialect, tool, function, arguments, form = FORMS[name]
    call = FunctionCall("call_1", function, json.dumps(arguments))
    sdk = Gateway(ModelAnswer("", (call,), finish="tool_calls", created=1))
    (got,) = answers(sdk, dialect, tool, stream)
    (offered,) = sdk.requests[0].tools
    assert offered["function"]["name"] == function
    assert arguments.keys() <= offered["function"]["parameters"]["properties"].keys()
    if name.startswith("local_shell"):
        got["action"] = {key: value for key, value in got["action"].items() if value is not None}
    assert form.items() <= got.items()
    if dialect is CHAT:
        assert got["custom"] == {"name": function, "input": PATCH}
        back = {"messages": [*ASKED, {"role": "assistant", "tool_calls": [got]}]}
    else:
        assert got["call_id"] == "call_1"
        TypeAdapter(ResponseOutputItem).validate_python(got)
        back = {"input": [*ASKED, got]}
    (read,) = dialect.read(back, nothing_stored).messages[-1].calls
    assert dataclasses.replace(read, arguments="") == dataclasses.replace(call, arguments="")
    assert json.loads(read.arguments) == arguments


WRONG = {
    "no JSON": (CUSTOM, "apply_patch", '{"input": "un'),
    "a text": (CUSTOM, "apply_patch", '"*** Begin Patch"'),
    "no input": (CUSTOM, "apply_patch", "{}"),
    "more than the input": (CUSTOM, "apply_patch", '{"input": "a", "path": "b"}'),
    "a command that is a text": ({"type": "local_shell"}, "local_shell", '{"command": "ls"}'),
    "a command of numbers": ({"type": "local_shell"}, "local_shell", '{"command": [1]}'),
    "a time that is a text": ({"type": "shell"}, "shell", '{"commands": ["ls"], "timeout_ms": "9"}'),
    "true for a number": ({"type": "shell"}, "shell", '{"commands": ["ls"], "timeout_ms": true}'),
    "another operation": ({"type": "apply_patch"}, "apply_patch", '{"type": "move", "path": "a", "diff": ""}'),
    "no diff": ({"type": "apply_patch"}, "apply_patch", '{"type": "update_file", "path": "a"}'),
    "a list": ({"type": "apply_patch"}, "apply_patch", "[1]"),
    "deep": (CUSTOM, "apply_patch", "[" * 100_000),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", WRONG)
def test_arguments_that_fit_no_form_reach_the_client_unchanged(name, stream):
    tool, function, arguments = WRONG[name]
    call = FunctionCall("call_1", function, arguments)
    (got,) = answers(Gateway(ModelAnswer("", (call,), finish="tool_calls")), RESPONSES, tool, stream)
    assert (got["type"], got["arguments"]) == ("function_call", arguments)
    (message,) = RESPONSES.read({"input": [got]}, nothing_stored).messages
    assert message.calls == (call,)


def test_half_a_character_reaches_no_client():
    call = FunctionCall("call_1", "apply_patch", '{"input": "a\\ud83d"}')
    (got,) = answers(Gateway(ModelAnswer("", (call,))), RESPONSES, CUSTOM, stream=False)
    assert (got["type"], got["input"]) == ("custom_tool_call", "a\ufffd")


def test_events_and_answers_are_of_the_vendors_types():
    for dialect, whole, event in TYPES[:2]:
        for mine, tool, function, arguments, _ in FORMS.values():
            if mine is dialect:
                answer = ModelAnswer("Hm.", (FunctionCall("call_1", function, json.dumps(arguments)),))
                request = dialect.read({"messages": ASKED, "input": ASKED, "tools": [tool]}, nothing_stored)
                whole.model_validate(dialect.response_body(answer, request))
                for one in parsed(dialect.response_events(answer, request)):
                    if dialect is RESPONSES:  # OpenAI's types of chunks have no custom calls, its server sends them
                        event.validate_python(one)


def test_the_grammar_is_told_to_the_model():
    for dialect, tool in ((RESPONSES, CUSTOM), (CHAT, CHAT_CUSTOM)):
        (offered,) = dialect.read({"messages": ASKED, "input": ASKED, "tools": [tool]}, nothing_stored).tools
        described = offered["function"]["description"]
        assert described.startswith("Takes a patch as it is.")
        assert "lark" in described
        assert GRAMMAR in described
    plain = {"type": "custom", "name": "note"}
    (offered,) = RESPONSES.read({"input": ASKED, "tools": [plain]}, nothing_stored).tools
    assert offered["function"]["description"] == ""


def test_a_custom_tool_of_a_namespace_keeps_it():
    inner = {"type": "namespace", "name": "files", "tools": [CUSTOM, {"type": "web_search"}]}
    request = RESPONSES.read({"input": ASKED, "tools": [inner]}, nothing_stored)
    call = FunctionCall("call_1", "apply_patch", json.dumps({"input": PATCH}), "files")
    (item,) = RESPONSES.response_body(ModelAnswer("", (call,)), request)["output"]
    assert (item["type"], item["namespace"], item["input"]) == ("custom_tool_call", "files", PATCH)
    (message,) = RESPONSES.read({"input": [item]}, nothing_stored).messages
    assert message.calls[0].namespace == "files"
    outside = dataclasses.replace(call, namespace="")
    assert RESPONSES.response_body(ModelAnswer("", (outside,)), request)["output"][0]["type"] == "function_call"


RESULTS = [
    ({"type": "custom_tool_call_output", "call_id": "c", "output": "A"}, "A"),
    ({"type": "function_call_output", "call_id": "c", "output": "A"}, "A"),  # Codex, for local_shell_call
    ({"type": "local_shell_call_output", "id": "c", "output": '{"output": "A"}'}, '{"output": "A"}'),
    ({"type": "local_shell_call_output", "id": "lsh_c", "output": "A"}, "A"),
    (
        {
            "type": "shell_call_output",
            "call_id": "c",
            "output": [{"stdout": "A", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        '{"outcome":{"exit_code":0,"type":"exit"},"stderr":"","stdout":"A"}',
    ),
    ({"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "A"}, "A"),
    ({"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "A"}, "[failed]\nA"),
    ({"type": "apply_patch_call_output", "call_id": "c", "status": "failed"}, "[failed]"),
]


@pytest.mark.parametrize(("item", "shown"), RESULTS)
def test_results_of_every_form_are_results(item, shown):
    (message,) = RESPONSES.read({"input": [item]}, nothing_stored).messages
    assert (message.role, message.text, message.call_id) == ("tool", shown, "c")


@pytest.mark.parametrize(
    "item",
    [
        {"type": "custom_tool_call", "call_id": "c", "input": "a"},
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": 3},
        {"type": "local_shell_call", "action": EXEC},
        {"type": "local_shell_call", "call_id": 3, "action": EXEC},
        {"type": "local_shell_call", "call_id": "c", "action": 3},
        {"type": "function_call_output", "output": "A"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": 3},
        {"type": "custom_tool_call_output", "output": "A"},
    ],
)
def test_a_malformed_item_is_refused(item):
    with pytest.raises(GatewayError, match=r"input\[0\]") as refused:
        RESPONSES.read({"input": [item]}, nothing_stored)
    assert refused.value.kind == "invalid"


@pytest.mark.parametrize(
    ("kind", "name", "keys", "absent"),
    [
        ("bash_20250124", "bash", {"command", "restart"}, set()),
        ("bash_20241022", "bash", {"command", "restart"}, set()),
        ("text_editor_20250728", "str_replace_based_edit_tool", {"command", "path", "insert_text"}, set()),
        ("text_editor_20250124", "str_replace_editor", {"command", "path", "new_str"}, {"insert_text"}),
        ("memory_20250818", "memory", {"command", "path", "old_path", "new_path"}, set()),
        ("computer_20250124", "computer", {"action", "coordinate", "text"}, {"region"}),
    ],
)
def test_anthropics_tools_are_functions(kind, name, keys, absent):
    tool = {"type": kind, "name": name, "display_width_px": 800, "display_height_px": 600}
    choice = {"type": "tool", "name": name}
    request = MESSAGES.read({"messages": ASKED, "tools": [tool], "tool_choice": choice}, nothing_stored)
    (offered,) = request.tools
    function = offered["function"]
    assert (function["name"], request.tool_choice) == (name, name)
    assert keys <= function["parameters"]["properties"].keys()
    assert absent.isdisjoint(function["parameters"]["properties"])
    assert ("800 x 600" in function["description"]) == (name == "computer")
    commands = function["parameters"]["properties"].get("command", {}).get("enum", ())
    assert ("undo_edit" in commands) == (name == "str_replace_editor")
    call = FunctionCall("call_1", name, '{"command": "view"}')
    assert MESSAGES.response_body(ModelAnswer("", (call,)), request)["content"] == [
        {"type": "tool_use", "id": "call_1", "name": name, "input": {"command": "view"}}
    ]
    with pytest.raises(GatewayError, match=r"tools\[0\].name"):
        MESSAGES.read({"messages": ASKED, "tools": [{"type": kind}]}, nothing_stored)


SERVERS = [
    ("responses", {"type": "web_search"}),
    ("responses", {"type": "code_interpreter", "container": {"type": "auto"}}),
    ("responses", {"type": "file_search", "vector_store_ids": ["v"]}),
    ("responses", {"type": "shell", "environment": {"type": "container_auto"}}),
    ("responses", {"type": "mcp", "server_label": "s"}),
    ("messages", {"type": "web_search_20250305", "name": "web_search"}),
    ("messages", {"type": "code_execution_20250825", "name": "code_execution"}),
    ("messages", {"type": "bash_20250124x", "name": "bash"}),
]


@pytest.mark.parametrize(("path", "tool"), SERVERS)
def test_tools_of_a_server_are_left_out_and_said_once(path, tool, caplog, monkeypatch):
    monkeypatch.setattr("rollenv.agents.gateway.dialects.client_tools._left_out", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert DIALECTS[path].read({"messages": ASKED, "input": ASKED, "tools": [tool]}, nothing_stored).tools == ()
    assert [tool["type"] in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("dialect", "tool", "choice"),
    [
        (RESPONSES, CUSTOM, {"type": "custom", "name": "apply_patch"}),
        (RESPONSES, {"type": "apply_patch"}, {"type": "apply_patch"}),
        (RESPONSES, {"type": "shell"}, {"type": "shell"}),
        (CHAT, CHAT_CUSTOM, {"type": "custom", "custom": {"name": "apply_patch"}}),
    ],
)
def test_one_of_them_may_be_chosen(dialect, tool, choice):
    body = {"messages": ASKED, "input": ASKED, "tool_choice": choice}
    request = dialect.read({**body, "tools": [tool]}, nothing_stored)
    assert request.tool_choice == request.tools[0]["function"]["name"]
    with pytest.raises(GatewayError, match="tool_choice"):
        dialect.read({**body, "tools": []}, nothing_stored)
    with pytest.raises(GatewayError, match="tool_choice"):
        dialect.read({**body, "tools": [tool], "tool_choice": {"type": "web_search"}}, nothing_stored)


def test_a_reference_leads_back_to_a_call_of_any_form():
    for dialect, tool, function, arguments, _ in FORMS.values():
        if dialect is RESPONSES:
            answer = ModelAnswer("", (FunctionCall("call_1", function, json.dumps(arguments)),))
            request = RESPONSES.read({"input": ASKED, "tools": [tool]}, nothing_stored)
            (item,) = RESPONSES.response_body(answer, request)["output"]
            reference = {"type": "item_reference", "id": item["id"]}
            (message,) = RESPONSES.read({"input": [reference]}, {"call_1": answer}.get).messages
            assert message.calls == answer.calls
