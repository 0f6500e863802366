"""What a message to the user says: answers and refusals."""

from __future__ import annotations

import re

#: A message that has one of these says that something cannot be done.
REFUSALS = ("cannot", "can't", "can’t", "can not", "unable", "not able", "not possible", "impossible", "not allowed")
#: Answers count in a last message of at most so many characters, so that nobody tells the user everything there is.
MOST_SAID = 600

_NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w])")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def mentions(text: str, answer: str) -> bool:
    """Whether a text has an answer as a word of its own; numbers may have commas, and be rounded to a cent.

    Args:
        text: a message.
        answer: a word, a phrase or a number.
    """
    text = text.lower()
    if re.fullmatch(r"\d+(\.\d+)?", answer):
        numbers = _NUMBER.findall(_THOUSANDS.sub("", text))
        return any(abs(float(number) - float(answer)) < 0.011 for number in numbers)
    return re.search(rf"(?<![\w.-]){re.escape(answer.lower())}(?![\w-])", text) is not None


def refuses(text: str) -> bool:
    """Whether a text says that something cannot be done."""
    lower = text.lower()
    return any(phrase in lower for phrase in REFUSALS)
