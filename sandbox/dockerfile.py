"""Reads Dockerfiles: instructions with their arguments, flags and heredocs. See the Dockerfile reference of Docker."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from rollenv.core import UsageError
from rollenv.sandbox.words import split

_DIRECTIVE = re.compile(r"^#\s*(\w+)\s*=\s*(.+?)\s*$")
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S+))?(?:\s+|$)")
#: A whole word; ``<<<`` and what is in quotes are the shell's.
_HEREDOC = re.compile(r"\d*<<(-?)([\"']?)([^\s<\"']+)\2")
#: Instructions that may have heredocs.
_WITH_HEREDOCS = ("RUN", "COPY", "ADD")


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        name: in capitals.
        text: what follows its name and flags, with continued lines joined.
        line: number of its first line, from 1.
        flags: ``--name=value``, in order.
        heredocs: (name, contents, whether variables are expanded) of each.
        escape: the escape character.
    """

    name: str
    text: str
    line: int
    flags: tuple[tuple[str, str], ...] = ()
    heredocs: tuple[tuple[str, str, bool], ...] = field(default=())
    escape: str = "\\"

    def words(self) -> list[str]:
        """The arguments: a JSON list, or words between spaces. Quotes, escapes and variables are still in them."""
        listed = self.listed()
        return self.text.split() if listed is None else listed

    def listed(self) -> list[str] | None:
        """The arguments in JSON form; None if they are not."""
        if not self.text.startswith("["):
            return None
        try:
            value = json.loads(self.text)
        except ValueError:
            return None
        return value if isinstance(value, list) and all(isinstance(word, str) for word in value) else None


def parse(text: str) -> list[Instruction]:
    """Split a Dockerfile into instructions.

    Raises:
        UsageError: if a heredoc does not end, or the escape character cannot be one.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    escape, at = _directives(lines)
    found = []
    while at < len(lines):
        if not lines[at].strip() or lines[at].lstrip().startswith("#"):
            at += 1
            continue
        first, (joined, at) = at + 1, _joined(lines, at, escape)
        if not joined.strip():
            continue
        name, *after = joined.split(maxsplit=1)
        flags, rest = _flags(after[0].strip() if after else "")
        words = split(rest, escape) if name.upper() in _WITH_HEREDOCS else []
        heredocs, at = _heredocs(words, lines, at, f"line {first}: {name.upper()}")
        found.append(Instruction(name.upper(), rest, first, flags, heredocs, escape))
    return found


def _directives(lines: list[str]) -> tuple[str, int]:
    """The character that continues lines, and the first line after the directives at the top."""
    escape, at = "\\", 0
    while at < len(lines) and (match := _DIRECTIVE.match(lines[at])):
        if match[1].lower() == "escape":
            escape = match[2]
            if escape not in ("\\", "`"):
                raise UsageError(f"line {at + 1}: the escape character is \\ or `, not {escape!r}")
        at += 1
    return escape, at


def _joined(lines: list[str], at: int, escape: str) -> tuple[str, int]:
    """A line with those that continue it (comments and empty lines between them do not count), and where it ends."""
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


def _flags(rest: str) -> tuple[tuple[tuple[str, str], ...], str]:
    found = []
    while match := _FLAG.match(rest):
        found.append((match[1], match[2] or ""))
        rest = rest[match.end() :]
    return tuple(found), rest.strip()


def _heredocs(words: list[str], lines: list[str], at: int, where: str) -> tuple[tuple[tuple[str, str, bool], ...], int]:
    found: list[tuple[str, str, bool]] = []
    for match in filter(None, map(_HEREDOC.fullmatch, words)):
        body = []
        while at < len(lines):
            line = lines[at].lstrip("\t") if match[1] else lines[at]
            at += 1
            if line == match[3]:
                break
            body.append(line)
        else:
            raise UsageError(f"{where}: nothing ends the heredoc {match[3]}")
        found.append((match[3], "".join(f"{line}\n" for line in body), not match[2]))
    return tuple(found), at
