"""Answers that are texts: exact match and F1 after normalisation."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable
from decimal import Context, Decimal

from rollenv.envs.data.characters import plain_characters

#: Maximum length of an answer.
MAX_CHARACTERS = 10_000

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_SIGNS = str.maketrans("⁄‒–", "/--")
_QUOTES = str.maketrans(dict.fromkeys("‘’‚‛´ʻʼʹ′‹›", "'") | dict.fromkeys("“”„‟«»″「」『』〝〞", '"'))
_THOUSANDS = re.compile(r"(?<![\w.,'])\d{1,3}(?:,\d{3})+(?![\d,]*\d)")
_MARK = re.escape(string.punctuation)
#: Punctuation, except a sign or a decimal point before a number, and characters between two digits.
_PUNCTUATION = re.compile(
    rf"(?!(?:(?<![\w)])|(?<=\de))-[$£€¥]?\.?\d|(?<![\w.])\.\d|(?<=\d)[{_MARK}]{{1,2}}\d|(?<=\d[{_MARK}])-\d)[{_MARK}]"
)
_DECIMAL = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d{1,3})?")
#: Reliable digits of a float.
_FLOAT_DIGITS = 15


def normalize(text: str) -> str:
    """Convert to lower case, without punctuation, articles and extra white space.

    A text of only articles or only punctuation keeps them. Numbers keep their sign, decimal point and other characters
    between digits, except commas between thousands. A text that is a decimal loses trailing zeros.
    """
    text = re.sub(r"^-\s+(?=\d)", "-", plain_characters(text.translate(_QUOTES)).lower().translate(_SIGNS).strip())
    words = _PUNCTUATION.sub("", _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text))
    if ("." in words or "e" in words) and _DECIMAL.fullmatch(words):
        value = Decimal(words)
        if len(value.as_tuple().digits) > _FLOAT_DIGITS and "." in words:  # 0.30000000000000004
            value = Context(prec=_FLOAT_DIGITS).plus(value)
        return f"{value.normalize():f}" if value else "0"
    return " ".join(_ARTICLES.sub(" ", words).split()) or " ".join(words.split()) or text


def exact_match(answer: str, accepted: Iterable[str]) -> float:
    """Return 1.0 if the answer equals an accepted one after :func:`normalize`, else 0.0. An empty answer is wrong."""
    normalized = normalize(answer)
    return float(says_something(answer) and any(normalized == normalize(one) for one in accepted))


def f1(answer: str, accepted: Iterable[str]) -> float:
    """Return the harmonic mean of precision and recall of the words, in [0, 1]; the most similar answer counts."""
    words = normalize(answer).split() if says_something(answer) else []
    return max((_f1(words, normalize(one).split()) for one in accepted), default=0.0)


def _f1(words: list[str], wanted: list[str]) -> float:
    if not words or not wanted:
        return 0.0
    common = (Counter(words) & Counter(wanted)).total()
    return 2 * common / (len(words) + len(wanted))


def says_something(text: str) -> bool:
    """Return whether a text has a letter or a digit."""
    return any(char.isalnum() for char in text)
