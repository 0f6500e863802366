r"""Finding the answer in what a model wrote: ``\boxed{}``, tags and code fences. Linear time, never raises."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"(\\f?box(?:ed)?\s*\{)|\\.|[{}]", re.DOTALL)
_FENCE = re.compile(r"```[ \t]*([A-Za-z0-9_+#-]*)[^\n]*\n(.*?)```", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete ``\boxed{...}`` (or ``\fbox{...}``), stripped; braces inside may nest.

    A box that is never closed does not hide an earlier one.
    """
    start = text.rfind("\\boxed{") + 7
    if start >= 7 and "\\fbox" not in text:
        end = text.find("}", start)
        if end >= 0 and text.find("{", start, end) < 0 and text.find("\\", start, end) < 0:
            return text[start:end].strip()
    elif "box" not in text:
        return None
    return _last_nested_box(text)


def _last_nested_box(text: str) -> str | None:
    open_at: list[int] = []  # where each open brace's content starts; negative for a brace that is not a box's
    best = (-1, -1)
    for token in _TOKEN.finditer(text):
        if token[1]:
            open_at.append(token.end())
        elif token[0] == "{":
            open_at.append(-1)
        elif token[0] == "}" and open_at:
            best = max(best, (open_at.pop(), token.start()))
    return text[best[0] : best[1]].strip() if best[0] >= 0 else None


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """What stands between the last ``</tag>`` and the ``<tag>`` before it, stripped."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, end) if end >= 0 else -1
    return text[start + len(tag) + 2 : end].strip() if start >= 0 else None


def last_code_block(text: str, languages: tuple[str, ...] | None = ("python", "py", "python3", "")) -> str | None:
    """The last fenced code block in one of the languages (``""`` is a fence without one), or None for in any."""
    blocks = [code for language, code in _FENCE.findall(text) if languages is None or language.lower() in languages]
    return blocks[-1] if blocks else None
