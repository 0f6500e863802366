"""Conversion to data for a browser: without NaN, integers that it would round, and very long text."""

from __future__ import annotations

import json
import math
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
