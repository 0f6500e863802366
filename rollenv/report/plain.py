"""Conversion to data for a browser: without NaN, integers that it would round, and very long text; and from files."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

#: Maximum characters of a text on the page; longer ones are shortened in the middle.
LONGEST = 20_000
_MOST_EXACT = 2**53
_DEEPEST = 20


def clip(text: str) -> str:
    """Shorten a very long text in the middle."""
    if len(text) <= LONGEST:
        return text
    head, tail = LONGEST * 3 // 4, LONGEST // 4
    left_out = f"\n\n[... {len(text) - head - tail} characters are left out here ...]\n\n"
    return text[:head] + left_out + text[-tail:]


def plain(value: Any, depth: int = 0) -> Any:
    """Convert JSON data for JavaScript: non-finite numbers, and integers too large to be exact, become text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clip(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, int) and abs(value) <= _MOST_EXACT:
        return value
    if depth > _DEEPEST:
        return "..."
    if isinstance(value, dict):
        return {str(key): plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, depth + 1) for inner in value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    return clip(hex(value) if isinstance(value, int) and value.bit_length() > 10_000 else str(value))


def number(value: Any, default: float = 0.0) -> float | str:
    """Convert a value to a number for the page.

    Args:
        default: used where ``value`` is not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    made: float | str = plain(value)
    return made


def dumps(value: Any) -> str:
    """Return ASCII JSON that is safe inside a ``<script>``: no text in it can end the script."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# -- what may be anything, as files of runs are written by others ------------------------------------------------------


def mapping(value: Any) -> dict[str, Any]:
    """Return a mapping; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return the items of a list; none for anything else."""
    return list(value) if isinstance(value, list | tuple) else []


def whole(value: Any, default: int = 0) -> int:
    """Return an integer, or the default for anything else."""
    return value if type(value) is int else default


def finite(value: Any) -> float | None:
    """Return a number that is finite as a float, else None."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return float(value) if good else None
