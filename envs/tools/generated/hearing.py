"""Reading of messages to the user: answers and refusals."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: A message that has one of these says that something cannot be done.
REFUSALS = ("cannot", "can't", "can’t", "can not", "unable", "not able", "not possible", "impossible", "not allowed")
#: Answers count in a last message of at most so many characters, so that nobody tells the user everything there is.
MOST_SAID = 600

_UNIT = r"(?:eur|usd|gbp|chf|jpy|kg|mg|km|cm|mm|ml|kb|mb|gb|tb|ms|min)(?!\w)"
_NUMBER = re.compile(rf"(?<![\w.-])\d+(?:\.\d+)?(?:(?={_UNIT})|(?!\w|\.\d))")
_THOUSANDS = re.compile(r"(?<=\d)[,'\u00a0\u202f](?=\d{3}(?!\d))")


def mentions(text: str, answer: str) -> bool:
    """Return whether a text has an answer as a word of its own; numbers may have commas, and be rounded to a cent.

    Args:
        answer: a word, a phrase or a number.
    """
    text, answer = text.lower(), answer.lower()
    if re.fullmatch(r"\d+(\.\d+)?", answer):
        numbers = _NUMBER.findall(_THOUSANDS.sub("", text))
        return any(abs(float(number) - float(answer)) < 0.011 for number in numbers)
    return answer in text and re.search(rf"(?<![\w.-]){re.escape(answer)}(?![\w-])", text) is not None


def guesses(text: str, rivals: Iterable[object], known: Iterable[str]) -> bool:
    """Return whether a text names something else that could be the answer.

    Args:
        rivals: what could be taken for the answer.
        known: texts that the message may repeat: the request and the right answers.
    """
    allowed = "; ".join(known)
    return any(mentions(text, rival) and not mentions(allowed, rival) for rival in dict.fromkeys(map(str, rivals)))


def refuses(text: str) -> bool:
    """Return whether a text says that something cannot be done."""
    lower = text.lower()
    return any(phrase in lower for phrase in REFUSALS)
