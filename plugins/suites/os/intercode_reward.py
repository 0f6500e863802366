"""InterCode's reward for Bash (arXiv 2306.14898): changed paths, changed contents, and the output."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

#: The share of each part; the remaining 0.01 is for acting at all.
_PART = 0.33
_WORD = re.compile(r"\b\w\w+\b")
#: Git's status of new files.
NEW = ("A", "??", "C")

#: A path and its git status.
Change = tuple[str, str]


@dataclass(frozen=True)
class Outcome:
    """The effect of a command."""

    output: str
    changes: frozenset[Change]
    """Lines of ``git status --short``."""
    hashes: Mapping[str, str]
    """Hashes of the contents of new files and folders, by path."""


def reward(given: Outcome, wanted: Outcome) -> float:
    """Return the reward, from 0.01 to 1."""
    different = len(given.changes ^ wanted.changes)
    common = [path for path, kind in given.changes & wanted.changes if kind in NEW]
    equal = sum(given.hashes.get(path) == wanted.hashes.get(path) for path in common)
    parts = (1 - math.erf(different), equal / len(common) if common else 1.0, similarity(given.output, wanted.output))
    return 0.01 + sum(round(_PART * part, 2) for part in parts)


def similarity(first: str, second: str) -> float:
    """Return the cosine similarity of two texts as bags of words, weighted by TF-IDF over the two.

    Words have two letters or more, in lower case; a word's weight is its count times
    ``ln(3 / (1 + texts with it)) + 1`` (scikit-learn's default). For texts without words, it is 1 if they are equal,
    else 0.
    """
    counts = [Counter(_WORD.findall(text.lower())) for text in (first, second)]
    if not counts[0] and not counts[1]:
        return float(first == second)
    once = math.log(3 / 2) + 1
    one, two = (
        {word: n * (1 if word in other else once) for word, n in each.items()}
        for each, other in zip(counts, counts[::-1], strict=True)
    )
    lengths = math.hypot(*one.values()) * math.hypot(*two.values())
    if lengths:
        return sum(weight * two[word] for word, weight in one.items() if word in two) / lengths
    return 0.0


def changes(status: str) -> frozenset[Change]:
    """Parse the output of ``git status --short -z``, whose entries end with a zero byte."""
    return frozenset((entry[3:], entry[:2].strip()) for entry in status.split("\0") if len(entry) > 3)
