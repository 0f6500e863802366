"""Words of a Dockerfile: quotes, escapes and variables, read once from left to right.

See "Environment replacement" in Docker's Dockerfile reference, and shell/lex.go of BuildKit for what it leaves open.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from rollenv.core import UsageError

#: A name, or what a shell would take for a parameter of its own: those are empty here.
_NAME = re.compile(r"[^\W\d]\w*|\d+|[@*#?$!-]")
_BRACED = re.compile(r"\{([^\W\d]\w*|\d+)(:?[-+?]|[#%/}])")


def split(text: str, escape: str = "\\") -> list[str]:
    """Words at spaces outside of quotes; their quotes and escapes stay."""
    return _word(escape).findall(text)


@functools.cache
def _word(escape: str) -> re.Pattern[str]:
    e = re.escape(escape)
    return re.compile(rf"(?:{e}.|'[^']*'?|\"(?:{e}.|[^\"{e}])*\"?|[^\s'\"{e}]|{e}$)+", re.DOTALL)


def expand(text: str, variables: Mapping[str, str], escape: str = "\\", *, quotes: bool = True) -> str:
    """Put variables in, and take quotes and escapes away: ``$NAME``, ``${NAME:-default}``, ``${NAME%pattern}`` ...

    Args:
        variables: by name; unknown ones are empty.
        quotes: whether quotes mean something; in a heredoc they do not.

    Raises:
        UsageError: if quotes or braces do not match, or ``${NAME:?message}`` has no value.
    """
    return _Reader(text, variables, escape, quotes).until("")


class _Reader:
    def __init__(self, text: str, variables: Mapping[str, str], escape: str, quotes: bool):
        self.text, self.variables, self.escape, self.quotes = text, variables, escape, quotes
        self.at = 0

    def until(self, end: str, *, raw: bool = False) -> str:
        """What comes before a character, which is taken too; raw keeps escapes, for patterns."""
        found: list[str] = []
        while self.at < len(self.text):
            char = self._take()
            if char == end:
                return "".join(found)
            if char == "$":
                found.append(self._variable())
            elif char == "'" and self.quotes:
                found.append(self._single())
            elif char == '"' and self.quotes:
                found.append(self._double())
            elif char == self.escape:
                found.append((char if raw else "") + self._take())
            else:
                found.append(char)
        if end:
            raise UsageError(f"{self.text!r}: a {end!r} is missing")
        return "".join(found)

    def _take(self) -> str:
        char = self.text[self.at : self.at + 1]
        self.at += 1
        return char

    def _single(self) -> str:
        text, end, _ = self.text[self.at :].partition("'")
        if not end:
            raise UsageError(f"{self.text!r}: a ' is missing")
        self.at += len(text) + 1
        return text

    def _double(self) -> str:
        found: list[str] = []
        while self.at < len(self.text):
            char = self._take()
            if char == '"':
                return "".join(found)
            if char == "$":
                found.append(self._variable())
            elif char == self.escape and self.text[self.at : self.at + 1] in ('"', "$", self.escape):
                found.append(self._take())
            else:
                found.append(char)
        raise UsageError(f'{self.text!r}: a " is missing')

    def _variable(self) -> str:
        """What a dollar begins; it has been taken."""
        if self.text[self.at : self.at + 1] != "{":
            match = _NAME.match(self.text, self.at)
            self.at = match.end() if match else self.at
            return self.variables.get(match[0], "") if match else "$"
        match = _BRACED.match(self.text, self.at)
        if match is None:
            raise UsageError(f"{self.text!r}: {self.text[self.at - 1 :][:40]!r} is no variable")
        self.at = match.end()
        name, how = match.groups()
        value = self.variables.get(name)
        if how == "}":
            return value or ""
        if how == "/":
            return self._replaced(value or "")
        word = self.until("}", raw=how in "#%")
        if how in "#%":
            return _trimmed(value or "", word, how)
        known = value if value or not how.startswith(":") else None
        if how.endswith("?") and known is None:
            raise UsageError(f"{name}: {word or 'is not set'}")
        if how.endswith("+"):
            return "" if known is None else word
        return word if known is None else known

    def _replaced(self, value: str) -> str:
        """``${NAME/pattern/replacement}``; with two slashes everywhere."""
        everywhere = self.text[self.at : self.at + 1] == "/"
        self.at += everywhere
        pattern, replacement = self.until("/", raw=True), self.until("}", raw=True)
        return re.sub(_pattern(pattern), lambda _: replacement, value, count=0 if everywhere else 1, flags=re.DOTALL)


def _trimmed(value: str, pattern: str, how: str) -> str:
    """Without the shortest beginning (``#``) or end (``%``) that fits; with the sign twice, the longest."""
    longest = pattern.startswith(how)
    fits = re.compile(_pattern(pattern[longest:]), re.DOTALL).fullmatch
    places = range(len(value) + 1)
    for i in reversed(places) if (how == "#") == longest else places:
        if fits(value[:i] if how == "#" else value[i:]):
            return value[i:] if how == "#" else value[:i]
    return value


def _pattern(text: str) -> str:
    special = {"*": ".*", "?": "."}
    return "".join(special.get(each) or re.escape(each[-1]) for each in re.findall(r"\\.|.", text, re.DOTALL))
