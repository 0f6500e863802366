"""Lucene's English text analysis, from texts to index terms.

The chain is that of Lucene's ``EnglishAnalyzer`` (StandardTokenizer, possessives, lower case, stop words, Porter's
stemmer), built from the rules of Unicode Standard Annex 29 and from M. F. Porter, "An algorithm for suffix stripping",
Program 14(3), 1980, with two changes from Porter's later programs that Lucene has too.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from rollenv.core.needs import require_extra

#: Maximum length of a token; Lucene splits longer ones.
MAX_TOKEN = 255

_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())

_ASCII = re.compile(r"(?<!_)_*(?:(?:[A-Za-z](?:[:.']?[A-Za-z])*|[0-9](?:[.,;']?[0-9])*)_*)+")

_DIGIT = r"\p{WB=Numeric}"
_UNDERSCORE = r"\p{WB=ExtendNumLet}"
_IN_WORD = r"[\p{WB=MidLetter}\p{WB=MidNumLet}\p{WB=Single_Quote}:]"
_IN_NUMBER = r"[\p{WB=MidNum}\p{WB=MidNumLet}\p{WB=Single_Quote}]"
_MARKS = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*"
_HEBREW = rf"\p{{WB=Hebrew_Letter}}{_MARKS}"
#: Hebrew words may have quotes within and after them.
_LETTER = rf"""(?: \p{{WB=ALetter}}{_MARKS}
 | {_HEBREW} (?: \p{{WB=Double_Quote}}{_MARKS}(?={_HEBREW}) | \p{{WB=Single_Quote}}{_MARKS} )? )"""
#: Letters and digits run together; Katakana only with Katakana.
_RUN = rf"""(?:
   (?: {_LETTER} (?: (?:{_IN_WORD}{_MARKS})? {_LETTER} )*
     | {_DIGIT}{_MARKS} (?: (?:{_IN_NUMBER}{_MARKS})? {_DIGIT}{_MARKS} )* )+
   | (?: \p{{WB=Katakana}}{_MARKS} )+ )"""
#: Pictographs of Unicode 12, the version of Lucene; later versions removed some of them.
_PICTURE = (
    r"[\p{ExtPict}\p{Emoji}\u2388\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2763-\u2767"
    r"--[0-9#*]]"
)
_PICTURE_MARKS = r"[\p{WB=Extend}\p{EMod}--\u200D]*"

_UNICODE = rf"""(?V1x)
 (?: {_UNDERSCORE}{_MARKS} )* {_RUN} (?: (?: {_UNDERSCORE}{_MARKS} )+ {_RUN} )* (?: {_UNDERSCORE}{_MARKS} )*
 | [\p{{Hiragana}}\p{{Han}}]{_MARKS}
 | [\p{{LB=SA}}]+
 | \p{{RI}}{_MARKS}\p{{RI}}{_MARKS}
 | [0-9\#*]\uFE0F?\u20E3
 | {_PICTURE}{_PICTURE_MARKS}(?: \u200D{_PICTURE}{_PICTURE_MARKS} )*
"""

#: Endings of Porter's later programs: after a syllable, -bli becomes -ble and -logi becomes -log.
_LATER = (("bl", "ble"), ("log", "log"))
_SYLLABLE = re.compile(r"[aeiouy].*?[^aeiouy]")


def package(module: str) -> Any:
    """Import a module of the extra ``webshop``."""
    return require_extra(module, "webshop", "WebShop")


@functools.cache
def _unicode_pattern() -> Any:
    return package("regex").compile(_UNICODE)


@functools.cache
def _stemmer() -> Any:
    return package("Stemmer").Stemmer("porter")


def tokens(text: str) -> list[str]:
    """Split a text into the tokens of Lucene's StandardTokenizer (words, numbers, ideographs, pictographs)."""
    found: list[str] = (_ASCII if text.isascii() else _unicode_pattern()).findall(text)
    if len(text) > MAX_TOKEN and max(map(len, found), default=0) > MAX_TOKEN:
        return [token[i : i + MAX_TOKEN] for token in found for i in range(0, len(token), MAX_TOKEN)]
    return found


def stem(word: str) -> str:
    """Return Porter's stem of a lower-case word, as in Lucene's PorterStemFilter; words of two letters are kept."""
    if len(word) < 3:
        return word
    later = _later_form(word) if word[-1] in "yids" else word
    return str(_stemmer().stemWord(later))


def _later_form(word: str) -> str:
    """Return a word whose stem by the paper is the stem of ``word`` by the later programs."""
    for ending, keep in _LATER:
        for suffix in ("y", "ies", "i", "ied"):
            if word.endswith(ending + suffix):
                before = word[: -len(ending + suffix)]
                return before + keep if _SYLLABLE.search(before) else word
    return word


def term(token: str) -> str | None:
    """Return the index term of a token; None for a stop word."""
    if len(token) > 1 and token[-1] in "sS" and token[-2] in "'\u2019\uff07":
        token = token[:-2]
    token = token.lower()
    return None if token in STOP_WORDS else stem(token)


def analyse(text: str) -> list[str]:
    """Return the terms of a text, in order."""
    return [found for token in tokens(text) if (found := term(token)) is not None]
