"""GLM: the name, then ``<arg_key>...</arg_key><arg_value>...</arg_value>`` for each argument."""

import re

from rollenv.core.tools.call_readers import Behind, CallFamily, Reading, ToolCall
from rollenv.plugins.calls.texts import add, convert_types

_NAME = re.compile(r"([\w.\-/]{1,200})\s*(?=<arg_key>|</tool_call>)")
_ARGUMENT = re.compile(
    r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*(?=<arg_key>|</tool_call>|\Z)", re.DOTALL
)


def read(behind: Behind) -> Reading | None:
    """Read a name and its arguments."""
    name = _NAME.match(behind.text, behind.start)
    if name is None or behind.closing != "</tool_call>":
        return None
    arguments: dict[str, str] = {}
    at = name.end()
    while argument := _ARGUMENT.match(behind.text, at):
        add(arguments, argument[1].strip(), argument[2])
        at = argument.end()
    if behind.text.startswith("<arg_", at):
        raise ValueError("an argument is not closed")
    return [ToolCall(name[1], convert_types(arguments, behind.functions.get(name[1], {})))], at


FAMILIES = (CallFamily("GLM", {"<tool_call>": "</tool_call>"}, read=read),)
