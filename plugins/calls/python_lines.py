"""OLMo 3: Python calls, each in a line of its own."""

import re

from rollenv.core.tools.call_readers import MOST_PYTHON, Behind, CallFamily, Reading, read_python

_MARK, _CLOSING = "<function_calls>", "</function_calls>"
_CALL = re.compile(r"[A-Za-z_][\w.]*\(")


def read(behind: Behind) -> Reading | None:
    """Read the calls up to the closing mark."""
    text, start = behind.text, behind.start
    if behind.mark[0] != _MARK or not _CALL.match(text, start):
        return None
    closed = text.find(_CLOSING, start)
    end = closed if closed >= 0 else len(text)
    return read_python(text[start : min(end, start + MOST_PYTHON)].strip()), end


FAMILIES = (CallFamily("OLMo 3", {_MARK: _CLOSING}, read=read),)
