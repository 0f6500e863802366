"""Kimi K3: marks with attributes around calls and arguments, which name their types.

``<|open|>call tool="look" index="1"<|sep|><|open|>argument key="x" type="number"<|sep|>1<|close|>argument<|sep|>...``
"""

import contextlib
import re
from typing import Any

from rollenv.core.tools.call_readers import JSON, Behind, CallFamily, Reading, ToolCall

_MARK = "<|open|>call "
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_ATTRIBUTES = r'((?:\s*\w+="[^"]*")*)\s*<\|sep\|>'
_CALL = re.compile(_ATTRIBUTES)
_ARGUMENT = re.compile(rf"\s*<\|open\|>argument{_ATTRIBUTES}(.*?)<\|close\|>argument<\|sep\|>", re.DOTALL)
_CLOSING = re.compile(r"\s*<\|close\|>call<\|sep\|>")


def read(behind: Behind) -> Reading | None:
    """Read a call; a value that is no string is JSON."""
    if behind.mark[0] != _MARK:
        return None
    call = _CALL.match(behind.text, behind.start)
    if call is None or "tool" not in (attributes := _attributes(call[1])):
        raise ValueError('the call does not begin with call tool="NAME"<|sep|>')
    arguments: dict[str, Any] = {}
    at = call.end()
    while argument := _ARGUMENT.match(behind.text, at):
        about, value, at = _attributes(argument[1]), argument[2], argument.end()
        key = about.get("key", "")
        if key in arguments:
            raise ValueError(f"the argument {key[:100]!r} is given twice")
        arguments[key] = value
        if about.get("type", "string") != "string":
            with contextlib.suppress(ValueError, RecursionError):  # the function reports the error
                arguments[key] = JSON.decode(value)
    end = _CLOSING.match(behind.text, at)
    if end is None:
        raise ValueError("the call is not closed: an argument or the call lacks its closing mark")
    return [ToolCall(attributes["tool"], arguments)], end.end()


def _attributes(text: str) -> dict[str, str]:
    return {name: value.replace("&quot;", '"').replace("&amp;", "&") for name, value in _ATTRIBUTE.findall(text)}


FAMILIES = (
    CallFamily(
        "Kimi K3",
        opening=("<|open|>tools<|sep|>", _MARK),
        closing=("<|close|>tools<|sep|>", "<|close|>message<|sep|>"),
        ends=("<|end_of_msg|>",),
        inner=("<|open|>", "<|sep|>", "<|close|>"),
        read=read,
    ),
)
