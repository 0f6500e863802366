"""Parser of Dockerfiles: instructions with their arguments, flags and heredocs. See Docker's Dockerfile reference."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollenv.sandbox.errors import InvalidArgument

#: A name, or a special parameter of a shell, which is empty here.
_NAME = re.compile(r"[^\W\d]\w*|\d+|[@*#?$!-]")
_BRACED = re.compile(r"\{([^\W\d]\w*|\d+)(:?[-+?]|[#%/}])")
_DIRECTIVE = re.compile(r"^#\s*(\w+)\s*=\s*(.+?)\s*$")
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S+))?(?:\s+|$)")
#: A heredoc as a whole word; the shell handles ``<<<`` and quoted texts.
_HEREDOC = re.compile(r"\d*<<(-?)([\"']?)([^\s<\"']+)\2")
#: Instructions that may have heredocs.
_WITH_HEREDOCS = ("RUN", "COPY", "ADD")


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        name: name in capitals.
        text: the rest after name and flags, with continued lines joined.
        line: number of the first line, from 1.
        flags: names and values of ``--name=value``, in order.
        heredocs: name, contents, and whether variables are expanded, of each.
        escape: escape character.
    """

    name: str
    text: str
    line: int
    flags: tuple[tuple[str, str], ...] = ()
    heredocs: tuple[tuple[str, str, bool], ...] = field(default=())
    escape: str = "\\"

    def words(self) -> list[str]:
        """The arguments, of a JSON list or split at spaces; quotes, escapes and variables are not resolved."""
        listed = self.listed()
        return self.text.split() if listed is None else listed

    def listed(self) -> list[str] | None:
        """The arguments in JSON form; None in any other form."""
        if not self.text.startswith("["):
            return None
        try:
            value = json.loads(self.text)
        except ValueError:
            return None
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return value
        return None


def parse(text: str) -> list[Instruction]:
    """Split a Dockerfile into instructions."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    # The escape character, and the first line after the directives.
    escape, at = "\\", 0
    while at < len(lines) and (match := _DIRECTIVE.match(lines[at])):
        if match[1].lower() == "escape":
            escape = match[2]
            if escape not in ("\\", "`"):
                raise InvalidArgument(f"line {at + 1}: the escape character is \\ or `, not {escape!r}")
        at += 1
    instructions = []
    while at < len(lines):
        if not lines[at].strip() or lines[at].lstrip().startswith("#"):
            at += 1
            continue
        first, (joined, at) = at + 1, _join_continuations(lines, at, escape)
        if not joined.strip():
            continue
        name, *after = joined.split(maxsplit=1)
        rest = after[0].strip() if after else ""
        flags: list[tuple[str, str]] = []
        while match := _FLAG.match(rest):
            flags.append((match[1], match[2] or ""))
            rest = rest[match.end() :]
        words = split(rest, escape) if name.upper() in _WITH_HEREDOCS else []
        heredocs, at = _heredocs(words, lines, at, f"line {first}: {name.upper()}")
        instructions.append(Instruction(name.upper(), rest, first, tuple(flags), heredocs, escape))
    return instructions


def _join_continuations(lines: list[str], at: int, escape: str) -> tuple[str, int]:
    """Join a line with its continuations, without comments and empty lines; return it and the next line's index."""
    text = ""
    while at < len(lines):
        line = lines[at].rstrip()
        at += 1
        if text and (not line.strip() or line.lstrip().startswith("#")):
            continue
        if not line.endswith(escape) or line.endswith(2 * escape):
            return text + line, at
        text += line[: -len(escape)]
    return text, at


def _heredocs(words: list[str], lines: list[str], at: int, where: str) -> tuple[tuple[tuple[str, str, bool], ...], int]:
    heredocs: list[tuple[str, str, bool]] = []
    for match in filter(None, map(_HEREDOC.fullmatch, words)):
        body = []
        while at < len(lines):
            line = lines[at].lstrip("\t") if match[1] else lines[at]
            at += 1
            if line == match[3]:
                break
            body.append(line)
        else:
            raise InvalidArgument(f"{where}: nothing ends the heredoc {match[3]}")
        heredocs.append((match[3], "".join(f"{line}\n" for line in body), not match[2]))
    return tuple(heredocs), at


# -- words: see "Environment replacement" in the reference, and shell/lex.go of BuildKit -------------------------------


def split(text: str, escape: str = "\\") -> list[str]:
    """Split at spaces outside of quotes; quotes and escapes stay."""
    return _word(escape).findall(text)


@functools.cache
def _word(escape: str) -> re.Pattern[str]:
    e = re.escape(escape)
    return re.compile(rf"(?:{e}.|'[^']*'?|\"(?:{e}.|[^\"{e}])*\"?|[^\s'\"{e}]|{e}$)+", re.DOTALL)


def expand(text: str, variables: Mapping[str, str], escape: str = "\\", *, quotes: bool = True) -> str:
    """Expand variables (``$NAME``, ``${NAME:-default}``, ``${NAME%pattern}`` ...) and remove quotes and escapes.

    Args:
        quotes: whether quotes are special; in a heredoc they are not.
    """
    return _WordReader(text, variables, escape, quotes).until("")


class _WordReader:
    def __init__(self, text: str, variables: Mapping[str, str], escape: str, quotes: bool):
        self.text, self.variables, self.escape, self.quotes = text, variables, escape, quotes
        self.at = 0

    def until(self, end: str, *, raw: bool = False) -> str:
        """Read up to and including a character, and return the text before it; raw keeps escapes, for patterns."""
        parts: list[str] = []
        while self.at < len(self.text):
            char = self._take()
            if char == end:
                return "".join(parts)
            if char == "$":
                parts.append(self._variable())
            elif char == "'" and self.quotes:
                text, quote, _ = self.text[self.at :].partition("'")
                if not quote:
                    raise InvalidArgument(f"{self.text!r}: a ' is missing")
                self.at += len(text) + 1
                parts.append(text)
            elif char == '"' and self.quotes:
                parts.append(self._double())
            elif char == self.escape:
                parts.append((char if raw else "") + self._take())
            else:
                parts.append(char)
        if end:
            raise InvalidArgument(f"{self.text!r}: a {end!r} is missing")
        return "".join(parts)

    def _take(self) -> str:
        char = self.text[self.at : self.at + 1]
        self.at += 1
        return char

    def _double(self) -> str:
        parts: list[str] = []
        while self.at < len(self.text):
            char = self._take()
            if char == '"':
                return "".join(parts)
            if char == "$":
                parts.append(self._variable())
            elif char == self.escape and self.text[self.at : self.at + 1] in ('"', "$", self.escape):
                parts.append(self._take())
            else:
                parts.append(char)
        raise InvalidArgument(f'{self.text!r}: a " is missing')

    def _variable(self) -> str:
        """Read a variable after its dollar sign."""
        if self.text[self.at : self.at + 1] != "{":
            match = _NAME.match(self.text, self.at)
            if match:
                self.at = match.end()
            return self.variables.get(match[0], "") if match else "$"
        match = _BRACED.match(self.text, self.at)
        if match is None:
            raise InvalidArgument(f"{self.text!r}: {self.text[self.at - 1 :][:40]!r} is not a variable")
        self.at = match.end()
        name, how = match.groups()
        value = self.variables.get(name)
        if how == "}":
            return value or ""
        if how == "/":
            return self._expand_replacement(value or "")
        word = self.until("}", raw=how in "#%")
        if how in "#%":
            return _trim_matching(value or "", word, how)
        known = value if value or not how.startswith(":") else None
        if how.endswith("?") and known is None:
            raise InvalidArgument(f"{name}: {word or 'is not set'}")
        if how.endswith("+"):
            return "" if known is None else word
        return word if known is None else known

    def _expand_replacement(self, value: str) -> str:
        """Expand ``${NAME/pattern/replacement}``; two slashes replace all matches."""
        everywhere = self.text[self.at : self.at + 1] == "/"
        self.at += everywhere
        pattern, replacement = self.until("/", raw=True), self.until("}", raw=True)
        return re.sub(_pattern(pattern), lambda _: replacement, value, count=0 if everywhere else 1, flags=re.DOTALL)


def _trim_matching(value: str, pattern: str, how: str) -> str:
    """Remove the shortest matching prefix (``#``) or suffix (``%``); with the sign twice, the longest."""
    longest = pattern.startswith(how)
    fits = re.compile(_pattern(pattern[longest:]), re.DOTALL).fullmatch
    lengths = range(len(value) + 1)
    for i in reversed(lengths) if (how == "#") == longest else lengths:
        if fits(value[:i] if how == "#" else value[i:]):
            return value[i:] if how == "#" else value[:i]
    return value


def _pattern(text: str) -> str:
    special = {"*": ".*", "?": "."}
    return "".join(special.get(each) or re.escape(each[-1]) for each in re.findall(r"\\.|.", text, re.DOTALL))
