"""OpenAI's tools that clients run themselves, whose calls in the Responses API have a form of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollenv.agents.gateway.dialects.client_tools import as_function, custom
from rollenv.agents.gateway.dialects.fields import compact, field, text
from rollenv.agents.gateway.messages import FunctionCall
from rollenv.plugins.dialects.common import NUMBER, TEXT, TEXTS, one_of

#: Descriptions and parameters by type; "?" marks a parameter that may be absent.
_TOOLS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "local_shell": (
        "Runs a command on the user's machine.",
        {
            "command": TEXTS,
            "env?": {"type": "object", "additionalProperties": TEXT},
            "timeout_ms?": NUMBER,
            "user?": TEXT,
            "working_directory?": TEXT,
        },
    ),
    "shell": (
        "Runs shell commands on the user's machine.",
        {"commands": TEXTS, "timeout_ms?": NUMBER, "max_output_length?": NUMBER},
    ),
    "apply_patch": (
        "Creates, updates or deletes a file. The diff has the lines of a unified diff, without file headers; it is "
        "absent for delete_file.",
        {"type": one_of("create_file", "update_file", "delete_file"), "path": TEXT, "diff?": TEXT},
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


def tools(of: Mapping[str, Any], where: str, namespace: str) -> list[dict[str, Any]]:
    """Return the function for a tool that is neither a function nor a namespace; none for a server's tool."""
    kind, environment = str(of.get("type")), field(of, "environment", dict, where) or {}
    if kind not in _TOOLS or environment.get("type", "local") != "local":
        return custom(of, where, namespace)
    return [{**as_function(kind, *_TOOLS[kind]), "form": kind}]


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
    """Return the arguments of an item that is a call in a form of its own, as ``form_of`` found them."""
    if isinstance(given := of.get("arguments"), str):
        return given
    for key in ("arguments", "action", "operation"):
        if found := field(of, key, dict, where):
            return compact({k: one for k, one in found.items() if one is not None and one != _ADDED.get(k)})
    texts = {key: text(of, key, where) for key in ("input", "code", "revised_prompt") if of.get(key) is not None}
    return compact({**texts, "queries": of["queries"]} if of.get("queries") else texts)
