"""Anthropic's tools that clients run themselves, offered to the model as functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rollenv.agents.gateway.dialects.client_tools import as_function, leave_out
from rollenv.agents.gateway.dialects.fields import required
from rollenv.plugins.dialects.common import NUMBER, NUMBERS, TEXT, one_of

_EDITS = {
    "view_range?": {**NUMBERS, "description": "First and last line for view; -1 is the end."},
    "insert_line?": {**NUMBER, "description": "Line after which to insert; 0 is the beginning."},
    **dict.fromkeys(("file_text?", "old_str?", "new_str?", "insert_text?"), TEXT),
}
_COMMANDS = ("view", "create", "str_replace", "insert")
_ACTIONS = (
    *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click"),
    *("screenshot", "cursor_position"),
    *("left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click", "zoom"),
)
#: Descriptions and parameters by type without its version.
_TOOLS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "bash": (
        "Runs a command in a persistent bash session, or restarts the session.",
        {"command?": TEXT, "restart?": {"type": "boolean"}},
    ),
    "text_editor": ("Views, creates and edits text files.", {"command": one_of(*_COMMANDS), "path": TEXT, **_EDITS}),
    "memory": (
        "Views, creates and edits files below /memories, which remain after this conversation.",
        {
            "command": one_of(*_COMMANDS, "delete", "rename"),
            **dict.fromkeys(("path?", "old_path?", "new_path?"), TEXT),
            **_EDITS,
        },
    ),
    "computer": (
        "Uses mouse and keyboard, and takes screenshots.",
        {
            "action": one_of(*_ACTIONS),
            **dict.fromkeys(("coordinate?", "start_coordinate?"), NUMBERS),
            "text?": {**TEXT, "description": "Text for type; keys for key, hold_key and clicks."},
            "scroll_direction?": one_of("up", "down", "left", "right"),
            "scroll_amount?": NUMBER,
            "duration?": {"type": "number", "description": "Seconds for hold_key and wait."},
            "region?": {**NUMBERS, "description": "x0, y0, x1, y1 for zoom."},
        },
    ),
}
_VERSIONED = re.compile(f"({'|'.join(_TOOLS)})_([0-9]{{8}})")


def functions(of: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the function for a tool with a version in its type; none for a server's tool."""
    kind = str(of.get("type"))
    if not (versioned := _VERSIONED.fullmatch(kind)):
        return leave_out(kind)
    description, parameters = _TOOLS[versioned[1]]
    absent = ""
    if versioned[1] == "text_editor" and versioned[2] < "20250429":  # these insert new_str and can undo
        parameters, absent = {**parameters, "command": one_of(*_COMMANDS, "undo_edit")}, "insert_text?"
    if versioned[1] == "computer":
        size = f"{of.get('display_width_px')} x {of.get('display_height_px')}"
        description = f"{description} The display has {size} pixels."
        if not of.get("enable_zoom"):
            known = _ACTIONS[: 10 if versioned[2] < "20250124" else -1]
            parameters, absent = {**parameters, "action": one_of(*known)}, "region?"
    parameters = {key: one for key, one in parameters.items() if key != absent}
    return [as_function(required(of, "name", where), description, parameters)]
