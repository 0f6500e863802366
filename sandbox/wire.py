"""Checks a kernel's messages by type, size and depth before they are used.

The kernel program is trusted, but what it forwards was written by untrusted code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]

#: Of a JSON document that a value offered as its representation.
MAX_JSON, MAX_DEPTH, MAX_NODES = 8 << 20, 64, 200_000
_MAX_RESULTS = 10_000
_FLAGS = ("timed_out", "truncated", "out_of_memory", "ended")


class ProtocolError(ValueError):
    """A message that a correct kernel never sends."""


def checked_done(done: Any) -> Json:
    """Check the final message of a request and return it.

    Raises:
        ProtocolError: if it is not.
    """
    _need(isinstance(done, dict))
    if (failed := done.get("failed")) is not None:
        _need(isinstance(failed, dict) and _is_number(failed.get("errno")) and isinstance(failed.get("message"), str))
    elif "results" in done:
        _need(isinstance(done["results"], list) and len(done["results"]) <= _MAX_RESULTS)
        _need(all(map(is_result, done["results"])))
        _need(done["error"] is None or _is_error(done["error"]))
        _need(all(isinstance(done[name], bool) for name in _FLAGS))
        _need(all(done.get(name) is None or _is_number(done[name]) for name in ("exit_code", "signal", "count")))
        _need(isinstance(done["seconds"], (int, float)))
    return dict(done)


def _need(condition: bool) -> None:
    if not condition:
        raise ProtocolError("a message is malformed")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def is_result(value: Any) -> bool:
    """Whether it is one result: representations by name, all of them text."""
    return isinstance(value, dict) and all(
        isinstance(v, bool) if k == "is_main_result" else isinstance(v, str) for k, v in value.items()
    )


def _is_error(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(k), str) for k in ("name", "value", "traceback"))


def parsed_json(text: str) -> Any:
    """A JSON document written by code, or None if it is invalid, too large, too deep or has too many parts."""
    if len(text) > MAX_JSON or sum(map(text.count, "[{,")) > MAX_NODES:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    level = [document]
    for _ in range(MAX_DEPTH):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return document
    return None


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
