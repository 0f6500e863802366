"""A name, special tokens, and the arguments in JSON: ``[TOOL_CALLS]name[ARGS]{...}``."""

import re
from dataclasses import replace

from rollenv.core.tools.call_readers import Behind, CallFamily, Reading, decode_json, named_call

_NAME = re.compile(
    r"(?:function<｜tool▁sep｜>)?(?:functions\.)?([\w.\-/]{1,200}?)(?::\d+)?(?:\s|<\|tool_call_argument_begin\|>|<｜tool▁sep｜>"
    r"|<\|plamo:\w+(?::plamo)?\|>|\[CALL_ID\]\w+|\[ARGS\]|<\|channel\|>\w+|<\|constrain\|>|<\|message\|>|```|json\b)*(?=\{)"
)
_ID = re.compile(r"functions\.[\w.\-/]+:\d+|(?<=\[CALL_ID\])\w+")  # Kimi's and Mistral's


def read(behind: Behind) -> Reading | None:
    """Read a name and its arguments."""
    name = _NAME.match(behind.text, behind.start)
    if name is None:
        return None
    data, end = decode_json(behind.text, name.end())
    own = _ID.search(name[0])
    return [replace(named_call(name[1], data), id=own[0] if own else "")], end


FAMILIES = (
    CallFamily(
        "Mistral",
        opening=("[TOOL_CALLS]",),
        closing=("[/TOOL_CALLS]",),
        inner=("[ARGS]", "[CALL_ID]"),
        read=read,
    ),
    CallFamily(
        "Kimi K2",
        opening=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        closing=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        inner=("<|tool_call_argument_begin|>",),
        read=read,
    ),
    CallFamily(
        "DeepSeek V3",
        opening=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        closing=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        inner=("<｜tool▁sep｜>",),
        read=read,
    ),
    CallFamily(
        "PLaMo 3",
        opening=(
            "<|plamo:begin_tool_requests:plamo|>",
            "<|plamo:begin_tool_request:plamo|>",
            "<|plamo:begin_tool_name:plamo|>",
        ),
        closing=(
            "<|plamo:end_tool_arguments:plamo|>",
            "<|plamo:end_tool_request:plamo|>",
            "<|plamo:end_tool_requests:plamo|>",
        ),
        read=read,
    ),
    CallFamily(
        "gpt-oss",  # another message of Muse's may name a function too
        pattern=r"<\|(?:start|channel)\|>(?:assistant|commentary|analysis)\s*"
        r"(?:<\|channel\|>(?:commentary|analysis)\s*)?to=(?=functions\.[\w.\-/]*(?![\w.\-/]|<\|message\|>\s*<atem:))",
        ends=("<|call|>",),
        read=read,
    ),
)
