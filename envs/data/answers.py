r"""Mathematical answers as text: finding the gold answer in a row, and comparing two answers where that is easy.

Most answers of most data sets are plain numbers, which :func:`compare` decides at once; what it leaves open goes to the
computer algebra of :mod:`rollenv.envs.data.grading`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rollenv.parsing import last_boxed

#: No longer answer is right, unless it is the gold answer letter by letter.
MAX_CHARACTERS = 1000

#: Decimals stand for a fraction if they agree with it to about six digits.
_TOLERANCE = Fraction(1, 10**6)

_SPACING = re.compile(r"\\[!,;: ]|\\quad|\\qquad|~|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|\\displaystyle")
_DEGREES = re.compile(r"\^\{?\\circ\}?|\\degree|°")
_TEXT = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|mathrm|mathbf|operatorname)\{([^{}]*)\}")
_UNIT = re.compile(r"(?<=[\d}.%])\s*\\(?:text|mbox|textrm|mathrm)\{[^{}]*\}(?:\^\{?[23]\}?)?$")
_WORDS = re.compile(r"(?<=[\d}.])\s+([a-zA-Z][a-zA-Z. ]*)(?:\^\{?[23]\}?)?$")
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d)")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|,\\!\s*)(?=\d{3}(?!\d))")
_LONE_BRACES = re.compile(r"([_^])\{(\w)\}")
_INNER_SPACE = re.compile(r"(?<![0-9a-zA-Z])\s+|\s+(?![0-9a-zA-Z])")

_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_NUMBER = re.compile(
    rf"([-+]?)(?:({_DECIMAL})"
    rf"|(\d+)?\s*\\frac\{{([-+]?{_DECIMAL})\}}\{{({_DECIMAL})\}}"
    rf"|(?:(\d+)\s+)?({_DECIMAL})\s*/\s*({_DECIMAL}))\s*(%?)"
)
_BASED = re.compile(r"(\d+)_(?:\{?(\d+)\}?)")
_ASSIGNED = re.compile(r"[a-zA-Z]\s*=\s*")
_CHOICE = re.compile(r"\(?([a-zA-Z])(?:$|[).:](?=$|[\w\\]))")
_PLAIN_WORDS = re.compile(r"[a-zA-Z]{2,}(?:[ '-][a-zA-Z]+)*")

#: Words after a number that are no unit: they change what it says, as a variable does.
_NO_UNITS = re.compile(
    r"\b(?:and|or|to|by|plus|minus|times|over|divided|point|half|halves|thirds?|quarters?|dozen|hundred|thousand|million"
    r"|billion|trillion|percent|per|mod|modulo|factorial|squared|cubed|[a-z])\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Plain:
    """A plain number, and how it was written."""

    value: Fraction
    percent: bool
    fraction: bool


def gold_answer(raw: Any) -> str:
    r"""The gold answer in a row: what follows ``####`` (GSM8K), the last ``\boxed{}`` (MATH's solutions), or all."""
    text = str(raw)
    if "####" in text:
        return text.rpartition("####")[2].strip()
    boxed = last_boxed(text) if "box" in text else None
    return text.strip() if boxed is None else boxed


def compare(gold: str, answer: str) -> bool | None:
    """Whether two answers are equal, where that can be seen without algebra; None where it cannot.

    Units after a number, currency signs, thousands separators and ways of writing LaTeX do not matter. A percentage
    equals its number with or without the sign, and its hundredth.
    """
    if gold.strip() == answer.strip():
        return bool(gold.strip())
    if len(answer) > MAX_CHARACTERS or not answer.strip():
        return False
    if len(gold) > MAX_CHARACTERS:
        return None
    ours, theirs = _normal(gold), _normal(answer)
    if ours == theirs:
        return True
    return _compare_normal(gold, ours, theirs)


def _compare_normal(gold: str, ours: str, theirs: str) -> bool | None:
    if (based := _BASED.fullmatch(ours)) and (digits := _BASED.fullmatch(theirs)):
        return based.groups() == digits.groups()
    if based and theirs.isdecimal():
        return based[1] == theirs
    wanted, got = _plain(ours), _plain(theirs)
    if wanted and got:
        return _equal(wanted, got)
    if wanted and _PLAIN_WORDS.fullmatch(theirs):
        return False
    if "\\text" in gold or "\\mbox" in gold:
        return _compare_text(ours, theirs)
    return None


def _compare_text(ours: str, theirs: str) -> bool | None:
    """Words, or a choice such as (C)."""
    if (wanted := _CHOICE.fullmatch(ours)) and (got := _CHOICE.match(theirs)):
        return wanted[1].lower() == got[1].lower()
    if _PLAIN_WORDS.fullmatch(ours) and _PLAIN_WORDS.fullmatch(theirs):
        return ours.lower() == theirs.lower()
    return None


def _normal(text: str) -> str:
    """One spelling of what is spelled in many ways."""
    text = text.replace("\\$", "").replace("$", "").replace("\\%", "%").strip().rstrip(".").rstrip("\\")
    text = text.replace("−", "-").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _THOUSANDS.sub("", text)
    text = _DEGREES.sub("", _SPACING.sub(" ", text)).strip()
    text = _without_unit(text)
    text = _TEXT.sub(r"\1", text)
    text = _SHORT_FRACTION.sub(lambda m: f"\\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    text = _LONE_BRACES.sub(r"\1\2", text)
    return _INNER_SPACE.sub("", text).strip()


def _without_unit(text: str) -> str:
    if unit := _UNIT.search(text):
        return text[: unit.start()]
    if (words := _WORDS.search(text)) and not _NO_UNITS.search(words[1]):
        return text[: words.start()]
    if re.search(r"\d\s+percent$", text):
        return text.removesuffix("percent").strip() + "%"
    return text


def _plain(text: str) -> _Plain | None:
    text = text.lstrip("£€¥")
    if assigned := _ASSIGNED.match(text):
        text = text[assigned.end() :]
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, decimal, whole, over, under, beside, above, below, percent = match.groups()
    if decimal is not None:
        value = Fraction(decimal)
    elif divisor := Fraction(under or below):
        value = Fraction(whole or beside or 0) + Fraction(over or above) / divisor
    else:
        return None
    return _Plain(-value if sign == "-" else value, bool(percent), decimal is None)


def _equal(gold: _Plain, answer: _Plain) -> bool:
    if gold.percent == answer.percent:
        return _close(gold, answer, gold.value, answer.value)
    whole, share = (gold.value, answer.value) if gold.percent else (answer.value, gold.value)
    return _close(gold, answer, whole, share) or _close(gold, answer, whole / 100, share)


def _close(gold: _Plain, answer: _Plain, a: Fraction, b: Fraction) -> bool:
    return a == b or (gold.fraction != answer.fraction and abs(a - b) <= _TOLERANCE * abs(a))
