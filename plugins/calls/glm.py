"""A name, then keys and values in elements: ``name<arg_key>x</arg_key><arg_value>1</arg_value>``.

K2 Horizon's elements have a prefix, and may say an argument's type, which its function's schema says, too. HY has
a mark behind the name.
"""

import re

from rollenv.core.tools.call_readers import Behind, CallFamily, Reading, ToolCall
from rollenv.plugins.calls.texts import add, convert_types

_PREFIX = r"(?:ifm\|)?"
_NEXT = rf"<{_PREFIX}arg_key>|</{_PREFIX}tool_call>"
_NAME = re.compile(rf"\s*([\w.\-/]{{1,200}})\s*(?:<tool_sep>\s*)?(?={_NEXT})")
_ARGUMENT = re.compile(
    rf"<{_PREFIX}arg_key>([^<]*)</{_PREFIX}arg_key>\s*(?:<ifm\|arg_type>[^<]*</ifm\|arg_type>\s*)?"
    rf"<{_PREFIX}arg_value>(.*?)</{_PREFIX}arg_value>\s*(?={_NEXT}|\Z)",
    re.DOTALL,
)


def read(behind: Behind) -> Reading | None:
    """Read a name and its arguments."""
    name = _NAME.match(behind.text, behind.start)
    if name is None or behind.closing not in ("</tool_call>", "</ifm|tool_call>"):
        return None
    arguments: dict[str, str] = {}
    at = name.end()
    while argument := _ARGUMENT.match(behind.text, at):
        add(arguments, argument[1].strip(), argument[2])
        at = argument.end()
    if behind.text.startswith(("<arg_", "<ifm|arg_"), at):
        raise ValueError("an argument is not closed")
    return [ToolCall(name[1], convert_types(arguments, behind.functions.get(name[1], {})))], at


FAMILIES = (
    CallFamily("GLM 4.5 to 4.7, Ling 3", {"<tool_call>": "</tool_call>"}, read=read),
    CallFamily("HY", {"<tool_calls>": "</tool_calls>"}, inner=("<tool_sep>",), read=read),
    CallFamily(
        "K2 Horizon", {"<ifm|tool_call>": "</ifm|tool_call>", "<ifm|tool_calls>": "</ifm|tool_calls>"}, read=read
    ),
)
