"""Apertus: ``[{"name": {...arguments}}, ...]``."""

import re

from rollenv.core.tools.call_readers import Behind, CallFamily, Reading, decode_json, named_call

_MARK = "<|tools_prefix|>"
_JSON = re.compile(r"\[\s*[{\]]|\{")


def read(behind: Behind) -> Reading | None:
    """Read a list of objects, each with a name as its key."""
    if behind.mark[0] != _MARK or not _JSON.match(behind.text, behind.start):
        return None
    data, end = decode_json(behind.text, behind.start)
    if not isinstance(data, list) or not all(isinstance(each, dict) for each in data):
        raise ValueError('the calls are not of the form [{"NAME": {...}}, ...]')
    return [named_call(name, given) for each in data for name, given in each.items()], end


FAMILIES = (CallFamily("Apertus", opening=(_MARK,), closing=("<|tools_suffix|>",), read=read),)
