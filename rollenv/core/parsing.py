r"""Parsers for model responses: ``\boxed{}``, tags and code fences. Linear time, never raise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

_TOKEN = re.compile(r"(\\f?box(?:ed)?\s*\{)|\\\\(?!f?box)|\\[{}]|[{}]")
#: A box without braces: a token with a digit, up to a space or the end of the formula, or a single letter at that end.
_BARE_BOX = re.compile(
    r"\\f?box(?:ed)?(?![a-zA-Z])\s*([^\s{}$\\a-zA-Z]*\d[^\s{}$\\]*|[a-zA-Z](?=\s*(?:\$|\\[\])]|\Z)))"
)
_TOKEN_IN_ANY_CASE = re.compile(_TOKEN.pattern, re.IGNORECASE)


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}`` (or ``\fbox{...}``), stripped; braces inside may nest.

    None if that box is never closed: it replaces earlier ones, and its own answer was cut off. ``\boxed 4`` counts too.
    """
    start = text.rfind("\\boxed{") + 7
    if start >= 7 and text.find("box", start) < 0:  # the last box of any spelling, nearly always a plain one
        content, closed, _ = text[start:].partition("}")
        if closed and "{" not in content and "\\" not in content:
            return content.strip()
    elif "box" not in text:
        return None
    open_at: list[int] = []  # start of each open brace's content; negative for a brace that is not a box's
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
    r"""Yield the content of each complete box without another box inside, stripped, last box first.

    The boxes do not overlap, so the time is linear in the text. ``\BOXED`` counts too.
    """
    open_at: list[int] = []
    newest = -1  # start of the content of the box opened last
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
    """Index behind the closing mark."""


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """Return the stripped text between the last ``</tag>`` and the ``<tag>`` before it, or None."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, end) if end >= 0 else -1
    return text[start + len(tag) + 2 : end].strip() if start >= 0 else None


def first_tagged(text: str, tag: str) -> Element | None:
    """Return the first ``<tag>`` and the unchanged text up to the next ``</tag>``, or None."""
    start = text.find(f"<{tag}>")
    end = text.find(f"</{tag}>", start) if start >= 0 else -1
    return Element(text[start + len(tag) + 2 : end], end + len(tag) + 3) if end >= 0 else None


#: Marks around a model's thoughts: DeepSeek and Qwen, prompts for Claude and others, Magistral, Seed, Kimi, Gemma 4,
#: Command A.
THOUGHT_MARKS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "◁think▷": "◁/think▷",
    "<|channel>thought": "<channel|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
}
_THOUGHT_OPENS = re.compile("|".join(map(re.escape, THOUGHT_MARKS)))
_THOUGHT_ENDS = re.compile("|".join(map(re.escape, THOUGHT_MARKS.values())))
#: gpt-oss (harmony): thoughts are messages of the channel "analysis" without calls. Muse: messages to itself.
_ANALYSIS = re.compile(
    r"(?:<\|start\|>assistant)?(?:<\|channel\|>analysis| to=self)<\|message\|>(.*?)(<\|e(?:nd|om)\|>|\Z)", re.DOTALL
)
_CHANNEL = re.compile(
    r"(?:<\|start\|>assistant)?(?:<\|channel\|>(?:final|commentary)| to=user)<\|message\|>|<\|(?:end|eom|return)\|>"
)
_IN_CHANNELS = re.compile(r"<\|channel\|>(?:analysis|final)| to=(?:self|user)<\|message\|>")


def opening_thought(text: str) -> int:
    """Return the end of a thought at the beginning of a text; the text's length if it does not end, 0 if none."""
    begins = len(text) - len(text.lstrip())
    opens = _THOUGHT_OPENS.match(text, begins)
    if opens is None:
        return 0
    end = text.find(THOUGHT_MARKS[opens[0]], opens.end())
    return len(text) if end < 0 else end + len(THOUGHT_MARKS[opens[0]])


class Thought(NamedTuple):
    """The thought at the beginning of a response."""

    text: str
    closed: bool
    answer: str
    """The text after it; empty if it does not end."""


def split_thought(text: str, opened: str = "") -> Thought | None:
    """Split a response into the thought at its beginning and the rest; None if it does not begin with a thought.

    Args:
        opened: the mark with which the prompt has already opened the thought.
    """
    start = len(text) - len(text.lstrip())
    opens = _THOUGHT_OPENS.match(text, start)
    if opens is None and not opened:
        return None
    begin = opens.end() if opens else 0
    closing = THOUGHT_MARKS[opens[0] if opens else opened]
    thought, closed, answer = text[begin:].partition(closing)
    return Thought(thought.strip(), bool(closed), answer.lstrip())


def after_thoughts(text: str, opened: bool = False) -> tuple[str, bool]:
    """Cut a response to the text after the last thought; empty if that thought does not end.

    Args:
        opened: the prompt has already opened a thought.

    Returns:
        The text, and True if a thought does not end.
    """
    if _IN_CHANNELS.search(text):
        unfinished = any(not thought[2] for thought in _ANALYSIS.finditer(text))
        return _CHANNEL.sub("", _ANALYSIS.sub("", text)).strip(), unfinished
    ends = 0
    for end in _THOUGHT_ENDS.finditer(text):
        ends = end.end()
    if opened and not ends:
        return "", True
    answer = text[ends:].lstrip() if ends else text
    opens = _THOUGHT_OPENS.search(answer)
    return (answer, False) if opens is None else (answer[: opens.start()].rstrip(), True)


def thoughts_in(text: str, opened: bool = False) -> str:
    """Return the thoughts of a response without their marks: all that :func:`after_thoughts` cuts."""
    if _IN_CHANNELS.search(text):
        return "\n\n".join(thought[1].strip() for thought in _ANALYSIS.finditer(text))
    answer, _ = after_thoughts(text, opened)
    thought = text[: text.rfind(answer)] if answer else text
    return _THOUGHT_ENDS.sub("", _THOUGHT_OPENS.sub("", thought)).strip()


_LANGUAGE = re.compile(r"[ \t]{0,16}([A-Za-z0-9_+#-]{0,32})")
_MARK = re.compile(r"`{3,8}")
_PYTHON = ("python", "py", "python3", "py3", "pypy3")
#: Strings and comments of Python, and fences. An unclosed string ends with its line or at a fence, an unclosed
#: triple-quoted one with the text.
_IN_PYTHON = re.compile(
    r"""
    (?P<long>\"{3}(?>[^"\\]+|\\.|"(?!""))*+(?:\"{3}|\Z)|'{3}(?>[^'\\]+|\\.|'(?!''))*+(?:'{3}|\Z))
    |"(?>[^"\\\n]+|\\.)*+"|'(?>[^'\\\n]+|\\.)*+'
    |["'](?>[^\\\n`]+|\\.|`(?!`{2,7}[ \t\r]*(?:\n|\Z)))*+
    |\#[ \t]*`{3}[^\n]*|\#[^\n`]*
    |(?P<fence>`{3,8})
    """,
    re.DOTALL | re.VERBOSE,
)
_THOUGHT = re.compile(r"<(?<![`'\"]<)(/?)(?:think|thinking|thought|reasoning)>")


def code_blocks(text: str) -> Iterator[tuple[str, Element]]:
    """Yield the complete fenced code blocks in order, as language in lower case and code.

    A fence is three to eight backticks anywhere in a line, closed by the same number outside of strings and comments of
    Python code. Text behind the language on its line is dropped; with backticks there, it is inline code and no block.
    Lines lose the indentation of a fence in a list or a quotation.
    """
    for language, _, block in _blocks(text):
        yield language, block


def _blocks(text: str) -> Iterator[tuple[str, int, Element]]:
    """Yield language, start of the fence, and block."""
    at, line_end, never_closed = 0, -1, 9
    searches = 8  # failed searches before strings are ignored, to keep the time linear
    while mark := _MARK.search(text, at):
        at, size = mark.end(), len(mark[0])
        if at > line_end:
            line_start, line_end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        if line_end < 0:
            return
        inline = text.find("```", at, line_end)
        if inline >= 0:
            at = inline + size
        elif size < never_closed:  # a longer fence cannot be closed either
            language = _LANGUAGE.match(text, at)
            assert language is not None  # the pattern also matches an empty language
            name = language[1].lower()
            end = -1
            if searches and name in (*_PYTHON, ""):
                end = _end_of_python(text, line_end + 1, size)
                searches -= end < 0
            if end < 0:
                end = text.find(mark[0], line_end + 1)
            if end < 0:
                never_closed = size
            else:
                code = _without_margin(text[line_end + 1 : end], text[line_start : mark.start()])
                yield name, mark.start(), Element(code.removeprefix("\ufeff"), end + size)
                at = end + size


def _end_of_python(text: str, start: int, size: int) -> int:
    """Return the start of the first fence outside strings and comments; -1 if none, or if a string contains blocks.

    In a docstring every second fence closes; one that opens a block there means that the string was never closed.
    """
    for found in _IN_PYTHON.finditer(text, start):
        if found["fence"] and len(found[0]) >= size:
            return found.start()
        if found["long"] and any(re.findall(r"`{3,8}(.?)", found[0])[1::2]):
            return -1
    return -1


def _without_margin(code: str, before: str) -> str:
    """Remove the prefix of the fence's line from the code: white space, a list's mark, or ``>`` of a quotation."""
    if not before or not re.fullmatch(r"[ \t>]*(?:[-*+][ \t]+|\d{1,9}[.)][ \t]+)?", before):
        return code
    margin = re.sub(r"[^\s>]", " ", before)
    first = next((line for line in code.split("\n") if line.strip()), "")
    margin = margin[: _shared(margin, first)]
    return "\n".join(line[_shared(margin, line) :] for line in code.split("\n"))


def _shared(margin: str, line: str) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(margin, line, strict=False))
    return next((at for at, (ours, theirs) in pairs if ours != theirs), min(len(margin), len(line)))


def last_code_block(text: str, languages: tuple[str, ...] | None = (*_PYTHON, "")) -> str | None:
    """Return the last fenced code block in one of the languages, or None. Blocks in a thought do not count.

    Args:
        languages: names after the opening fence. None matches any. ``""`` matches a fence without a language if no
            other block matches: after a program, such a block shows its output.
    """
    if (opened := _THOUGHT.match(text, len(text) - len(text.lstrip()))) and not opened[1]:
        text = text.partition(f"</{opened[0][1:]}")[2]
    named = unnamed = None
    end, thinking = 0, False
    for language, start, block in _blocks(text):
        for mark in _THOUGHT.finditer(text, end, start):
            thinking, named, unnamed = not mark[1], None if mark[1] else named, None if mark[1] else unnamed
        end = block.end
        if not thinking and (languages is None or (language and language in languages)):
            named = block.content
        elif not thinking and not language and languages and "" in languages:
            unnamed = block.content
    if any(mark[1] for mark in _THOUGHT.finditer(text, end)):
        return None
    return unnamed if named is None else named


def cut_middle(text: str, most: int) -> str:
    """Keep at most ``most`` characters of a text's beginning and end, with a note about the rest."""
    if len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}\n[... {len(text) - most} characters left out ...]\n{text[len(text) - (most - head) :]}"


def well_formed(text: str) -> str:
    """Join surrogate pairs in a text, and replace lone surrogates by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


#: Formats of an action: its parser and an example.
ACTION_FORMATS: dict[str, tuple[Callable[[str], str | None], str]] = {
    "boxed": (last_boxed, "\\boxed{%s}"),
    "answer": (last_tagged, "<answer>%s</answer>"),
    "bare": (str, "%s"),
}
