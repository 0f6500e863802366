"""Inequalities as sets, and values without variable names."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from itertools import pairwise

_SIGN = {"le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠", "lt": "<", "gt": ">"}
_COMMAND = re.compile(rf"\\({'|'.join(_SIGN)})(?![a-zA-Z])")
_RELATION = re.compile(r"\s*([<>≤≥≠])\s*")
_TURNED = {">": "<", "≥": "≤"}
_MEMBER = re.compile(r"[a-zA-Z]\\in(?![a-zA-Z])\s*")
_JOINT = re.compile(r"\s*(,?\s*\b(?:or|and)\b|\\(?:lor|vee|cup|land|wedge|cap)(?![a-zA-Z])|[,;])\s*")
_REALS = re.compile(r"\\(?:mathbb|mathbf)(?:\{R\}|\s+R(?![a-zA-Z]))(?!\^)|\\R(?![a-zA-Z^])")
_LINE = "(-\\infty,\\infty)"
_BRACKETS = {"<": "()", "≤": "[]"}
_INFINITE = {"-\\infty": -math.inf, "\\infty": math.inf}

_ASSIGNED = re.compile(r"([a-zA-Z](?:_\w)?(?:\([a-z]\))?)=([^=]+)")
_TURNED_ASSIGNED = re.compile(r"([^=]+)=([a-zA-Z])")
_ASSIGNED_POINT = re.compile(r"\(([a-z](?:,[a-z])+)\)=(\(.*\))")


def has_relation(text: str) -> bool:
    """Return whether a text has an inequality."""
    return _RELATION.search(_COMMAND.sub(lambda found: _SIGN[found[1]], text)) is not None


def solution_set(text: str) -> str:
    r"""Convert inequalities in one variable, ``x \in`` and the real line to unions of intervals; keep other text.

    Inequalities separated by commas are a system if they have common solutions, else alternatives.
    """
    if text in ("\\{\\}", "\\{ \\}"):
        return "\\emptyset"
    text = _REALS.sub(lambda _: _LINE, text).replace(f"{_LINE}-\\{{", f"{_LINE}\\setminus\\{{")
    if _MEMBER.match(text):
        text = _MEMBER.sub("", text, count=1)
    signed = _COMMAND.sub(lambda found: _SIGN[found[1]], text)
    if not _RELATION.search(signed):
        return text
    pieces = _JOINT.split(signed)
    found = [one for piece in pieces[::2] if (one := _interval(piece))]
    joints = {_operator(joint) for joint in pieces[1::2]}
    if len(found) <= len(pieces) // 2 or len(joints) > 1 or len({variable for variable, _ in found}) > 1:
        return text
    sets = [one for _, one in found]
    operator = joints.pop() if joints else ""
    return operator.join(sets) if operator != "," else _combine_sets(sets) or text


def _operator(joint: str) -> str:
    operators = {"": ",", ";": ",", **dict.fromkeys(("and", "land", "wedge", "cap"), "\\cap")}
    return operators.get(joint.strip(", \\"), "\\cup")


def _interval(text: str) -> tuple[str, str] | None:
    """Return the variable of an inequality and its solutions."""
    parts = _RELATION.split(text)
    if "=" in text or "," in text or not all(parts):
        return None
    if set(parts[1::2]) <= {*_TURNED}:  # 5 > x > 2
        parts = [_TURNED.get(part, part) for part in reversed(parts)]
    match parts:
        case [low, ("<" | "≤") as first, variable, ("<" | "≤") as last, high]:
            ends = f"{_BRACKETS[first][0]}{low},{high}{_BRACKETS[last][1]}"
        case [variable, "≠", end]:
            ends = f"{_LINE}\\setminus\\{{{end}\\}}"
        case [variable, ("<" | "≤") as sign, end] if _is_letter(variable) and not _is_letter(end):
            ends = f"(-\\infty,{end}{_BRACKETS[sign][1]}"
        case [end, ("<" | "≤") as sign, variable] if not _is_letter(end):
            ends = f"{_BRACKETS[sign][0]}{end},\\infty)"
        case _:
            return None
    return (variable, ends) if _is_letter(variable) else None


def _is_letter(text: str) -> bool:
    return len(text) == 1 and text.isalpha()


def _combine_sets(sets: list[str]) -> str | None:
    """Combine sets separated by commas to their intersection, or their union if they are disjoint; else None."""
    spans = sorted(span for one in sets if (span := _span(one)))
    if len(spans) < len(sets):
        return None
    if max(low for low, _ in spans) < min(high for _, high in spans):
        return "\\cap".join(sets)
    return "\\cup".join(sets) if all(one[1] <= other[0] for one, other in pairwise(spans)) else None


def _span(interval: str) -> tuple[Fraction | float, Fraction | float] | None:
    try:
        low, high = (_INFINITE.get(end) or Fraction(end) for end in interval[1:-1].split(","))
    except (ValueError, ZeroDivisionError):
        return None
    return low, high


def unassigned(gold: str, answer: str) -> tuple[str, str]:
    r"""Remove ``x =`` from two answers, unless their variables differ; ``x=1,y=2`` becomes ``(1,2)``.

    An equation is kept if the other answer is one too and does not assign a variable.
    """
    (names, ours), (others, theirs) = _read_assignments(gold), _read_assignments(answer)
    if (names and not others and "=" in answer and _is_curve(names, ours)) or (others and not names and "=" in gold):
        return gold, answer
    if names and others and not _same_names(names, others):
        return gold, answer
    if names != others and not (names and others) and len({name[0] for name in names + others}) == 1:
        ours, theirs = (text[1:-1] if len(known) > 1 else text for known, text in ((names, ours), (others, theirs)))
    return ours, theirs


def _is_curve(names: list[str], value: str) -> bool:
    return len(names) == 1 and bool(re.search(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])", value))


def _same_names(names: list[str], others: list[str]) -> bool:
    """Return whether the names are the same; a curve may be called y or f(x)."""
    return names == others or {"".join(names), "".join(others)} in ({"y", "f(x)"}, {"y", "y(x)"})


def _read_assignments(text: str) -> tuple[list[str], str]:
    """Return the assigned variables in alphabetical order, and their values."""
    if (found := _ASSIGNED_POINT.fullmatch(text)) and (names := found[1].split(",")) == sorted(set(names)):
        return names, found[2]
    each = [_ASSIGNED.fullmatch(part) for part in text.split(",")]
    pairs = [found.groups() for found in each if found]
    if len(pairs) == len(each) > 1:
        names = [name for name, _ in pairs]
        if len(set(names)) == 1:
            return names[:1], ",".join(value for _, value in pairs)
        return sorted(names), f"({','.join(value for _, value in sorted(pairs))})" if len(set(names)) == len(
            names
        ) else text
    if (found := _ASSIGNED.fullmatch(text)) or (found := _TURNED_ASSIGNED.fullmatch(text)):
        name, value = found.groups() if found.re is _ASSIGNED else found.groups()[::-1]
        letters = re.sub(r"\\[a-zA-Z]+", "", value)
        return ([name], value) if name not in letters else ([], text)
    return [], text
