r"""Finding the answer in what a model wrote: ``\boxed{}``, tags and code fences. Linear time, never raises."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

_TOKEN = re.compile(r"(\\f?box(?:ed)?\s*\{)|\\\\(?!f?box)|\\[{}]|[{}]")
#: A box without braces: what has a digit, up to a space or the end of the formula, or the one letter before that end.
_BARE_BOX = re.compile(
    r"\\f?box(?:ed)?(?![a-zA-Z])\s*([^\s{}$\\a-zA-Z]*\d[^\s{}$\\]*|[a-zA-Z](?=\s*(?:\$|\\[\])]|\Z)))"
)
_BOX = re.compile(r"\\f?box")
_TOKEN_IN_ANY_CASE = re.compile(_TOKEN.pattern, re.IGNORECASE)


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` (or ``\fbox{...}``), stripped; braces inside may nest.

    None if that box is never closed: it takes back an earlier one, and its own answer was cut off. ``\boxed 4`` is a
    box too.
    """
    start = text.rfind("\\boxed{") + 7
    if start >= 7 and not _BOX.search(text, start):  # the last box of any spelling, nearly always a plain one
        end = text.find("}", start)
        if end >= 0 and text.find("{", start, end) < 0 and text.find("\\", start, end) < 0:
            return text[start:end].strip()
    elif "box" not in text:
        return None
    return _last_nested_box(text)


def _last_nested_box(text: str) -> str | None:
    open_at: list[int] = []  # where each open brace's content starts; negative for a brace that is not a box's
    newest, best = -1, (-1, -1)
    for token in _TOKEN.finditer(text):
        if token[1]:
            newest = token.end()
            open_at.append(newest)
        elif token[0] == "{":
            open_at.append(-1)
        elif token[0] == "}" and open_at:
            best = max(best, (open_at.pop(), token.start()))
    for bare in _BARE_BOX.finditer(text, max(newest, 0)):
        newest, best = bare.start(1), bare.span(1)
    return text[best[0] : best[1]].strip() if best[0] >= 0 and best[0] == newest else None


def boxes(text: str) -> Iterator[str]:
    r"""The content of each complete box without another box inside, stripped, the last box first.

    The boxes do not overlap, so looking through all of them takes time linear in the text. ``\BOXED`` counts too.
    """
    open_at: list[int] = []
    newest = -1  # where the content of the box opened last starts
    found = []
    for token in _TOKEN_IN_ANY_CASE.finditer(text):
        if token[1]:
            newest = token.end()
            open_at.append(newest)
        elif token[0] == "{":
            open_at.append(-1)
        elif token[0] == "}" and open_at and open_at.pop() == newest >= 0:
            found.append((newest, token.start()))
    for start, end in reversed(found):
        yield text[start:end].strip()


class Element(NamedTuple):
    """A tagged part of a text."""

    content: str
    end: int
    """Where the closing mark ends."""


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """The stripped text between the last ``</tag>`` and the ``<tag>`` before it, or None.

    Args:
        tag: name of the tag, without brackets.
    """
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, end) if end >= 0 else -1
    return text[start + len(tag) + 2 : end].strip() if start >= 0 else None


def first_tagged(text: str, tag: str) -> Element | None:
    """The first ``<tag>`` and the unchanged text up to the next ``</tag>``, or None.

    Args:
        tag: name of the tag, without brackets.
    """
    start = text.find(f"<{tag}>")
    end = text.find(f"</{tag}>", start) if start >= 0 else -1
    return Element(text[start + len(tag) + 2 : end], end + len(tag) + 3) if end >= 0 else None


_LANGUAGE = re.compile(r"[ \t]{0,16}([A-Za-z0-9_+#-]{0,32})")
_MARK = re.compile(r"`{3,8}")


def code_blocks(text: str) -> Iterator[tuple[str, Element]]:
    """The complete fenced code blocks, in order: language in lower case, then the code.

    A fence is three to eight backticks, anywhere in a line, and is closed by as many. What follows the language on its
    line is left out; backticks there mean inline code, which is not a block.
    """
    at, line_end, never_closed = 0, -1, 9
    while mark := _MARK.search(text, at):
        at, size = mark.end(), len(mark[0])
        if at > line_end:
            line_end = text.find("\n", at)
        if line_end < 0:
            return
        inline = text.find("```", at, line_end)
        if inline >= 0:
            at = inline + size
        elif size < never_closed:  # a longer fence is not closed either
            end = text.find(mark[0], line_end + 1)
            if end < 0:
                never_closed = size
            else:
                language = _LANGUAGE.match(text, at)
                assert language is not None  # it matches nothing too
                yield language[1].lower(), Element(text[line_end + 1 : end], end + size)
                at = end + size


def last_code_block(text: str, languages: tuple[str, ...] | None = ("python", "py", "python3", "")) -> str | None:
    """The last fenced code block in one of the given languages, or None.

    Args:
        languages: names after the opening fence; ``""`` matches a fence without a language, None matches any.
    """
    found = None
    for language, block in code_blocks(text):
        if languages is None or language in languages:
            found = block.content
    return found


def well_formed(text: str) -> str:
    """The text with halves of characters put together, and U+FFFD for those left over, which cannot be encoded."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


#: Ways to write an action: how it is found in a text, and an example of it.
ACTION_FORMATS: dict[str, tuple[Callable[[str], str | None], str]] = {
    "boxed": (last_boxed, "\\boxed{%s}"),
    "answer": (last_tagged, "<answer>%s</answer>"),
    "bare": (str, "%s"),
}
