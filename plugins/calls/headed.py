"""A function's name in a line and its arguments in JSON, without a mark before the first call.

GLM-4 writes a call and nothing else. Functionary 3.2 writes ``>>>`` before each call that follows a text or a call.
"""

import re

from rollenv.core.tools.call_readers import CallFamily, Functions, ToolCall, decode_json

_NAME = r"([\w.\-/]{1,200})[^\S\n]*\n(?=\{)"
_FIRST = re.compile(rf"\s*{_NAME}")
_NEXT = re.compile(rf">>>{_NAME}")


def read(text: str, functions: Functions) -> tuple[list[ToolCall], str] | None:
    """Read calls of known functions that are followed by nothing or by a mark."""
    calls: list[ToolCall] = []
    around, at = "", 0
    for head in (_FIRST.match(text), *_NEXT.finditer(text)):
        if head is None or head.start() < at or head[1] not in functions:
            continue
        try:
            arguments, end = decode_json(text, head.end())
            call = ToolCall(head[1], arguments, end)
        except ValueError as error:
            end = len(text)
            call = ToolCall(head[1], {}, end, str(error)[:300])
        if text[end:].lstrip().startswith(">>>") or not text[end:].strip():
            around, at = around + text[at : head.start()], end
            calls.append(call)
    return (calls, around + text[at:]) if calls else None


FAMILIES = (CallFamily("GLM-4, Functionary 3.2", unmarked=read),)
