"""Gemma: ``call:name{key:value}`` with strings between marks and keys without quotation marks."""

import json
import re

from rollenv.core.tools.call_readers import Behind, CallFamily, Reading, decode_json, named_call

_NAME = re.compile(r"call:([\w.\-/]{1,200})(?=\{)")
_STRING_OR_KEY = re.compile(r'<\|"\|>(.*?)<\|"\|>|(?<=[{,])\s*([^\s"{}\[\],:<]{1,200})\s*(?=:)', re.DOTALL)


def read(behind: Behind) -> Reading | None:
    """Read a call up to its closing mark."""
    text = behind.text
    name = _NAME.match(text, behind.start)
    if name is None or not behind.closing:
        return None
    closed = text.find(behind.closing, name.end())
    end = closed if closed >= 0 else len(text)
    written = text[name.end() : end].replace("<escape>", '<|"|>')
    if '<|"|>' in written or '"' not in written:
        written = _STRING_OR_KEY.sub(lambda part: json.dumps(part[1] if part[2] is None else part[2]), written)
    data, after = decode_json(written, 0)
    if written[after:].strip():
        raise ValueError("the call is not valid: text follows its arguments")
    return [named_call(name[1], data)], end


FAMILIES = (
    CallFamily("Gemma 4", {"<|tool_call>": "<tool_call|>"}, inner=('<|"|>',), read=read),
    CallFamily("FunctionGemma", {"<start_function_call>": "<end_function_call>"}, inner=("<escape>",), read=read),
)
