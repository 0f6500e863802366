"""A function in an element, its parameters in elements within: ``<function=name><parameter=key>value</parameter>``.

``<invoke name="name"><parameter name="key">value</parameter></invoke>`` is the same form, with or without a prefix of
the words. Llama 3.1 has JSON in the element; MiniCPM5 writes ``<function name="name"><param name="key">``.
"""

import re

from rollenv.core.tools.call_readers import Behind, CallFamily, Reading, ToolCall, decode_json, named_call
from rollenv.plugins.calls.texts import add, convert_types

_PREFIX = r"(?:\w{1,20}:|｜DSML｜ ?)?"
_INVOKE = rf"<(?:{_PREFIX}invoke|function)\s+name="
_PARAMETER = rf"{_PREFIX}param(?:eter)?"
_END = rf"</{_PREFIX}(?:function|invoke)>"
_NAME = re.compile(rf"<function=\s*([^<>\s]{{1,200}}?)\s*>\s*|{_INVOKE}[\"']([^\"'<>]{{1,200}})[\"']\s*>\s*")
_ARGUMENT = re.compile(
    rf"<{_PARAMETER}(?:=\s*([^<>]{{1,200}}?)|\s+name=[\"']([^\"'<>]{{1,200}})[\"'][^<>]{{0,100}})\s*>(.*?)"
    rf"</{_PARAMETER}>\s*(?=<{_PARAMETER}[=\s]|{_END})",
    re.DOTALL,
)
_CLOSING = re.compile(rf"\s*{_END}")


def read(behind: Behind) -> Reading | None:
    """Read an element."""
    if not behind.mark[0].endswith(("<function=", "name=")):
        return None
    text = behind.text
    element = _NAME.match(text, behind.mark.start())
    if element is None:
        raise ValueError("the call is not closed: its name lacks a closing mark")
    name, at = (element[1] or element[2]).strip(), element.end()
    if text.startswith("{", at):
        data, at = decode_json(text, at)
        call = named_call(name, data)
    else:
        given: dict[str, str] = {}
        while argument := _ARGUMENT.match(text, at):
            add(given, (argument[1] or argument[2]).strip(), argument[3])
            at = argument.end()
        call = ToolCall(name, convert_types(given, behind.functions.get(name, {})))
    end = _CLOSING.match(text, at)
    if end is None:
        raise ValueError("the call is not closed: a parameter or the function lacks its closing mark")
    return [call], end.end()


#: The recipient before a call of Muse's.
_TO = r" to=[\w.\-/]{1,200}<\|message\|>\s*(?=<atem:)"

FAMILIES = (
    CallFamily("Qwen3-Coder, Llama 3.1", opening=("<function=",), read=read),
    CallFamily("Anthropic, MiniCPM5", {"<function_calls>": "</function_calls>"}, pattern=_INVOKE, read=read),
    CallFamily("Seed-OSS", {"<seed:tool_call>": "</seed:tool_call>"}, read=read),
    CallFamily("MiniMax-M2", {"<minimax:tool_call>": "</minimax:tool_call>"}, read=read),
    CallFamily("dots", {"<dots_function_call>": "</dots_function_call>"}, read=read),
    CallFamily("DeepSeek V3.2", {"<｜DSML｜function_calls>": "</｜DSML｜function_calls>"}, read=read),
    CallFamily("DeepSeek V4", {"<｜DSML｜tool_calls>": "</｜DSML｜tool_calls>"}, read=read),
    CallFamily("DeepSeek V4.1", {"<｜DSML｜ calls>": "</｜DSML｜ calls>"}, read=read),
    CallFamily(
        "Muse",
        {"<atem:function_calls>": "</atem:function_calls>"},
        pattern=rf"<\|start\|>assistant{_TO}|{_TO}",
        read=read,
    ),
    CallFamily(
        "Step-3",
        opening=("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "<｜tool_call_begin｜>function<｜tool_sep｜>"),
        closing=("<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
        inner=("<｜tool_sep｜>",),
        read=read,
    ),
)
