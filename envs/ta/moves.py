"""Likely moves of a text game: those that its text shows in brackets, then common ones."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

_BRACKETS = re.compile(r"\[[^\[\]\n]{1,40}\]")
_NOT_A_MOVE = re.compile(r"\[(GAME|Player.*|Moderator|.*<.*)\]")

_VARIABLE = re.compile(r"\d+|(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_WORDS = (
    *("[up]", "[down]", "[left]", "[right]", "[w]", "[a]", "[s]", "[d]", "[hit]", "[stand]", "[call]", "[fold]"),
    *("[check]", "[bet]", "[raise]", "[roll]", "[hold]", "[accept]", "[deny]", "[pass]", "[draw]", "[stop]"),
    *("[continue]", "[cooperate]", "[defect]", "[split]", "[rock]", "[paper]", "[scissors]", "[heads]", "[tails]"),
    *("[believe]", "[skip]", "[done]", "[quit]"),
)


def candidates(text: str, draws: random.Random) -> Iterator[str]:
    """Yield moves to try, without end.

    Moves that the text shows in brackets come first, then variations with other numbers and letters.
    """
    shown = sorted({m for m in _BRACKETS.findall(text) if not _NOT_A_MOVE.fullmatch(m)})
    draws.shuffle(shown)
    yield from shown[:15]
    templates = [m for m in shown if _VARIABLE.search(m)]
    while True:
        kind = draws.randrange(8)
        if kind < 4 and templates:
            high = draws.choice((3, 5, 8, 12))
            template = draws.choice(templates)
            yield _VARIABLE.sub(lambda m, high=high: _another(m[0], high, draws), template)  # type: ignore[misc]
        elif kind < 5:
            yield f"[{draws.randrange(21)}]"
        elif kind < 6:
            yield draws.choice(_WORDS)
        elif kind < 7:
            yield f"[{draws.randrange(8)} {draws.randrange(8)}]"
        else:
            yield f"[{draws.choice('ABCDEFGH')}{draws.randrange(10)}]"


def _another(part: str, high: int, draws: random.Random) -> str:
    """Another number, or another letter of the same case."""
    if part.isdecimal():
        return str(draws.randrange(high))
    return chr(ord("A" if part.isupper() else "a") + draws.randrange(8))
