"""Tools that clients run themselves but name by a type, without a JSON schema: offered to the model as functions.

OpenAI's have calls of their own form; Anthropic's are called as functions are. The schemas are those of the vendors.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rollenv.agents.gateway.dialects.fields import compact, field, readable, required, text
from rollenv.agents.gateway.messages import FunctionCall, GatewayError

logger = logging.getLogger(__name__)

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_TEXTS, _NUMBERS = {"type": "array", "items": _TEXT}, {"type": "array", "items": _NUMBER}
_MAP = {"type": "object", "additionalProperties": _TEXT}


def _one_of(*names: str) -> dict[str, Any]:
    return {**_TEXT, "enum": list(names)}


#: Descriptions and parameters of OpenAI's tools by type; "?" marks a parameter that may be absent.
_OPENAI: Mapping[str, tuple[str, dict[str, Any]]] = {
    "local_shell": (
        "Runs a command on the user's machine.",
        {"command": _TEXTS, "env?": _MAP, "timeout_ms?": _NUMBER, "user?": _TEXT, "working_directory?": _TEXT},
    ),
    "shell": (
        "Runs shell commands on the user's machine.",
        {"commands": _TEXTS, "timeout_ms?": _NUMBER, "max_output_length?": _NUMBER},
    ),
    "apply_patch": (
        "Creates, updates or deletes a file. The diff has the lines of a unified diff, without file headers; it is "
        "absent for delete_file.",
        {"type": _one_of("create_file", "update_file", "delete_file"), "path": _TEXT, "diff?": _TEXT},
    ),
}
#: The type of a call's item, and the prefix of its id, by the form of the tool.
ITEMS = {
    "custom": ("custom_tool_call", "ctc"),
    "local_shell": ("local_shell_call", "lsh"),
    "shell": ("shell_call", "sh"),
    "apply_patch": ("apply_patch_call", "apc"),
}
#: What the action of a ``local_shell_call`` has besides the model's arguments.
_ADDED: Mapping[str, Any] = {"type": "exec", "env": {}}
KINDS = tuple(kind for kind, _ in ITEMS.values())
_EDITS = {
    "view_range?": {**_NUMBERS, "description": "First and last line for view; -1 is the end."},
    "insert_line?": {**_NUMBER, "description": "Line after which to insert; 0 is the beginning."},
    **dict.fromkeys(("file_text?", "old_str?", "new_str?", "insert_text?"), _TEXT),
}
_COMMANDS = ("view", "create", "str_replace", "insert")
_ACTIONS = (
    *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click"),
    *("screenshot", "cursor_position"),
    *("left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click", "zoom"),
)
#: Anthropic's, by type without its version.
_ANTHROPIC: Mapping[str, tuple[str, dict[str, Any]]] = {
    "bash": (
        "Runs a command in a persistent bash session, or restarts the session.",
        {"command?": _TEXT, "restart?": {"type": "boolean"}},
    ),
    "text_editor": (
        "Views, creates and edits text files.",
        {"command": _one_of(*_COMMANDS), "path": _TEXT, **_EDITS},
    ),
    "memory": (
        "Views, creates and edits files below /memories, which remain after this conversation.",
        {
            "command": _one_of(*_COMMANDS, "delete", "rename"),
            **dict.fromkeys(("path?", "old_path?", "new_path?"), _TEXT),
            **_EDITS,
        },
    ),
    "computer": (
        "Uses mouse and keyboard, and takes screenshots.",
        {
            "action": _one_of(*_ACTIONS),
            **dict.fromkeys(("coordinate?", "start_coordinate?"), _NUMBERS),
            "text?": {**_TEXT, "description": "Text for type; keys for key, hold_key and clicks."},
            "scroll_direction?": _one_of("up", "down", "left", "right"),
            "scroll_amount?": _NUMBER,
            "duration?": {"type": "number", "description": "Seconds for hold_key and wait."},
            "region?": {**_NUMBERS, "description": "x0, y0, x1, y1 for zoom."},
        },
    ),
}
_VERSIONED = re.compile(f"({'|'.join(_ANTHROPIC)})_([0-9]{{8}})")
_left_out: set[str] = set()


def openai(of: Mapping[str, Any], where: str, namespace: str = "") -> list[dict[str, Any]]:
    """Return the function for a tool that is neither a function nor a namespace; none for a server's tool."""
    kind = str(of.get("type"))
    if kind == "custom":
        described = field(of, "custom", dict, where) or of  # chat completions have an object inside
        return [_custom(described, where, namespace)]
    environment = field(of, "environment", dict, where) or {}
    if kind not in _OPENAI or environment.get("type", "local") != "local":
        return _leave_out(kind)
    return [{**_function(kind, *_OPENAI[kind]), "form": kind}]


def anthropic(of: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the function for a tool with a version in its type; none for a server's tool."""
    kind = str(of.get("type"))
    if not (versioned := _VERSIONED.fullmatch(kind)):
        return _leave_out(kind)
    description, parameters = _ANTHROPIC[versioned[1]]
    absent = ""
    if versioned[1] == "text_editor" and versioned[2] < "20250429":  # these insert new_str and can undo
        parameters, absent = {**parameters, "command": _one_of(*_COMMANDS, "undo_edit")}, "insert_text?"
    if versioned[1] == "computer":
        size = f"{of.get('display_width_px')} x {of.get('display_height_px')}"
        description = f"{description} The display has {size} pixels."
        if not of.get("enable_zoom"):
            known = _ACTIONS[: 10 if versioned[2] < "20250124" else -1]
            parameters, absent = {**parameters, "action": _one_of(*known)}, "region?"
    parameters = {key: one for key, one in parameters.items() if key != absent}
    return [_function(required(of, "name", where), description, parameters)]


def _leave_out(kind: str) -> list[dict[str, Any]]:
    """Warn once that tools of a type are not offered."""
    kind = kind[:60]
    if kind not in _left_out and len(_left_out) < 50:  # the client chooses the types
        _left_out.add(kind)
        logger.warning("tools of type %r are not offered to the model: they are no functions of the client", kind)
    return []


def _function(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key.rstrip("?"): one for key, one in parameters.items()},
        "required": [key for key in parameters if not key.endswith("?")],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _custom(of: Mapping[str, Any], where: str, namespace: str) -> dict[str, Any]:
    """Describe a tool that takes a text, which may have to fit a grammar."""
    description, form = text(of, "description", where), field(of, "format", dict, where) or {}
    grammar = field(form, "grammar", dict, where) or form
    if rules := text(grammar, "definition", where):
        syntax = text(grammar, "syntax", where)
        description = f"{description}\n\nThe input must fit this {syntax} grammar:\n{rules}".lstrip()
    tool = {**_function(required(of, "name", where), description, {"input": _TEXT}), "form": "custom"}
    return {**tool, "namespace": namespace} if namespace else tool


def form_of(call: FunctionCall, tools: Iterable[Mapping[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Return the form of a call, and its arguments; "" for functions and for arguments that do not fit the form.

    A client reports the call of a function that it does not have to the model, as it does with arguments that are not
    JSON.
    """
    forms = (tool for tool in tools if "form" in tool and tool["function"]["name"] == call.name)
    tool = next((tool for tool in forms if tool.get("namespace", "") == call.namespace), None)
    if tool is not None:
        with contextlib.suppress(GatewayError, ValueError, RecursionError):
            arguments = readable(json.loads(call.arguments))
            fits = _fits(arguments, tool["function"]["parameters"])
            if fits and ("diff" in arguments or arguments.get("type") not in ("create_file", "update_file")):
                return tool["form"], arguments
    return "", {}


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a value fits a schema of this module."""
    match schema["type"]:
        case "object":
            known, more = schema.get("properties", {}), schema.get("additionalProperties")
            return (
                isinstance(value, dict)
                and value.keys() >= set(schema.get("required", ()))
                and all((key in known or more) and _fits(one, known.get(key, more)) for key, one in value.items())
            )
        case "array":
            return isinstance(value, list) and all(_fits(one, schema["items"]) for one in value)
        case "string":
            return isinstance(value, str) and value in schema.get("enum", [value])
    return isinstance(value, int) and not isinstance(value, bool)


def item(call: FunctionCall, form: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Write a call as an item of the Responses API."""
    kind, prefix = ITEMS[form]
    written: dict[str, Any] = {"id": f"{prefix}_{call.id}", "type": kind, "call_id": call.id}
    match form:
        case "custom":
            space = {"namespace": call.namespace} if call.namespace else {}
            return {**written, "name": call.name, **space, **arguments}
        case "local_shell":
            return {**written, "action": {**_ADDED, **arguments}}
        case "shell":
            return {**written, "action": {"timeout_ms": None, "max_output_length": None, **arguments}}
    return {**written, "operation": arguments, "status": "completed"}  # it has no other status at the end


def arguments(of: Mapping[str, Any], where: str) -> str:
    """Return the arguments of an item that is a call in a form of its own, as :func:`form_of` found them."""
    if isinstance(given := of.get("arguments"), str):
        return given
    for key in ("arguments", "action", "operation"):
        if found := field(of, key, dict, where):
            return compact({k: one for k, one in found.items() if one is not None and one != _ADDED.get(k)})
    texts = {key: text(of, key, where) for key in ("input", "code", "revised_prompt") if of.get(key) is not None}
    return compact({**texts, "queries": of["queries"]} if of.get("queries") else texts)
