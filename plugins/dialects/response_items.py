"""Calls in the Responses API of tools whose calls have a form of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollenv.agents.gateway.dialects.fields import compact, field, text
from rollenv.agents.gateway.messages import FunctionCall

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
