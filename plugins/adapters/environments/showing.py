"""Text of third-party observations: numbers, arrays, dictionaries, and browser pages."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rollenv.core.parsing import well_formed

#: Maximum number of values of an array; larger ones, mostly images, are left out.
MOST_NUMBERS = 1000
#: Maximum number of values of a dictionary.
MOST_NAMED = 10_000
#: Maximum length of a text.
LONGEST = 40_000
#: Maximum depth of data.
_DEEPEST = 12
#: Maximum size of an integer, in bits; Python does not convert much larger ones to text.
_LARGEST = 4096

#: Keys of the page in BrowserGym's observations, in order of preference.
_TREES = ("axtree_txt", "axtree_object", "pruned_html", "dom_txt", "dom_object")


def show(observation: Any) -> str:
    """Convert an observation to text: texts unchanged, dictionaries line by line, numbers with five digits."""
    if isinstance(observation, str):
        return _cut(observation)
    if isinstance(observation, Mapping):
        if _is_a_page(observation):
            return _page(observation)
        return _cut("\n".join(f"{name}: {_value(value)}" for name, value in observation.items()))
    return _cut(_value(observation))


def plain(value: Any, digits: int | None = None, depth: int = 0) -> Any:
    """Convert any value to JSON data, with a note in brackets for what cannot be converted.

    Args:
        digits: significant digits of floats; by default all.
        depth: nesting depth of the value.
    """
    if isinstance(value, int) and value.bit_length() > _LARGEST:
        return f"(number of {value.bit_length()} bits, not shown)"
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, float | np.floating):
        return float(value) if digits is None or not math.isfinite(value) else float(f"{value:.{digits}g}")
    if isinstance(value, np.generic):
        item = value.item()  # returns itself for types without a Python equivalent
        return f"({type(value).__name__})" if isinstance(item, np.generic) else plain(item, digits, depth)
    if isinstance(value, np.ndarray) and value.size > MOST_NUMBERS:
        return f"({value.dtype} array of {' x '.join(map(str, value.shape))}, not shown)"
    if depth > _DEEPEST:
        return "(not shown)"
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), digits, depth + value.dtype.hasobject)  # an array of objects may contain itself
    if isinstance(value, Mapping):
        if depth and _numbers(value, MOST_NAMED) > MOST_NAMED:
            return "(dictionary of more than ten thousand values, not shown)"
        return {well_formed(str(name)): plain(each, digits, depth + 1) for name, each in value.items()}
    if isinstance(value, list | tuple):
        if _numbers(value, MOST_NUMBERS) > MOST_NUMBERS:
            return "(list of more than a thousand values, not shown)"
        return [plain(each, digits, depth + 1) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(each, digits, depth + 1) for each in value), key=repr)
    return f"({type(value).__name__})"


def _value(value: Any) -> str:
    found = plain(value, 5)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _numbers(value: Any, most: int, depth: int = 0) -> int:
    """Count the values in a value, including nested ones, up to a number above ``most``; cycles are allowed."""
    inside = _inside(value)
    if inside is None or depth > _DEEPEST:
        return 1
    n = 0
    for each in inside:
        n += _numbers(each, most, depth + 1)
        if n > most:
            break
    return n


def _inside(value: Any) -> Iterable[Any] | None:
    """Return the elements of a container; None for other values."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return value.ravel().tolist() if value.ndim else [value.item()]
    return value if isinstance(value, list | tuple) else None


def _cut(text: str) -> str:
    left = len(text) - LONGEST
    return well_formed(text) if left <= 0 else f"{well_formed(text[:LONGEST])}\n({left} more characters)"


# -- browsers --------------------------------------------------------------------------------------------------------


def _is_a_page(observation: Mapping[str, Any]) -> bool:
    has_goal = "goal" in observation or "goal_object" in observation
    return has_goal and any(name in observation for name in _TREES)


def _page(observation: Mapping[str, Any]) -> str:
    """Convert BrowserGym's observation, without pictures and times."""
    shown = {
        "Goal": _goal(observation),
        "Page": observation.get("url"),
        "Tabs": _tabs(observation),
        "Focused element": observation.get("focused_element_bid"),
        "The last action failed": observation.get("last_action_error"),
        "Messages": _messages(observation.get("chat_messages")),
    }
    lines = [f"{name}: {show(value)}" for name, value in shown.items() if isinstance(value, str) and value]
    return "\n".join([*lines, "", _tree(observation)])


def _goal(observation: Mapping[str, Any]) -> str:
    if isinstance(goal := observation.get("goal"), str) and goal:
        return goal
    parts = observation.get("goal_object") or ()
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _tabs(observation: Mapping[str, Any]) -> str:
    urls = list(observation.get("open_pages_urls") or ())
    if len(urls) < 2:
        return ""
    active = int(np.asarray(observation.get("active_page_index", -1)).ravel()[0])
    return ", ".join(f"{i}{' (this one)' if i == active else ''} {url}" for i, url in enumerate(urls))


def _messages(messages: Any) -> str:
    found = [m for m in messages or () if isinstance(m, Mapping)]
    return "\n".join(f"{m.get('role', '?')}: {m.get('message', '')}" for m in found[-5:] if m.get("role") != "info")


def _tree(observation: Mapping[str, Any]) -> str:
    for name in _TREES:
        value = observation.get(name)
        if isinstance(value, str) and value:
            return _cut(value)
        if name == "axtree_object" and isinstance(value, Mapping) and value.get("nodes"):
            return _cut("\n".join(_nodes(value["nodes"])))
    return "(the page has no text)"


def _nodes(nodes: Any) -> list[str]:
    """Convert Chromium's accessibility tree to lines ``[id] role 'name'``, indented by depth."""
    known = {node["nodeId"]: node for node in nodes if "nodeId" in node}
    root = next(iter(known), None)
    lines: list[str] = []
    waiting, seen = [(root, 0, "")], set()
    while waiting:
        number, depth, around = waiting.pop()
        if number not in known or number in seen:
            continue
        seen.add(number)
        node, name = known[number], _text_of(known[number], "name")
        line = "" if _text_of(node, "role") == "StaticText" and name in around else _node(node)
        if line:
            lines.append("  " * depth + line)
        waiting += [(child, depth + bool(line), name) for child in reversed(node.get("childIds") or ())]
    return lines


def _node(node: Mapping[str, Any]) -> str:
    """Convert one element; empty for mere groups."""
    role, name = _text_of(node, "role"), _text_of(node, "name")
    bid = node.get("browsergym_id")
    if node.get("ignored") or role in ("InlineTextBox", "none") or (role in ("generic", "") and not name):
        return ""
    states = {each.get("name"): _text_of(each, "value") for each in node.get("properties") or ()}
    shown = [f"{key}={value}" for key, value in states.items() if key in _STATES and value not in ("", "False")]
    value = _text_of(node, "value")
    parts = [f"[{bid}]" if bid else "", role, repr(name) if name else "", f"value={value!r}" if value else "", *shown]
    return " ".join(filter(None, parts))


_STATES = ("checked", "disabled", "expanded", "focused", "pressed", "required", "selected")


def _text_of(node: Mapping[str, Any], name: str) -> str:
    value = node.get(name)
    found = value.get("value") if isinstance(value, Mapping) else value
    return "" if found is None else str(found)
