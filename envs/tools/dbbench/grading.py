"""AgentBench's judgement of DBBench: answers as cleaned texts, and changes by a hash of the table."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from rollenv.envs.tools.sql.mysql_values import as_text

_NOTHING = {"none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity", ""}
#: MySQL's ``GROUP_CONCAT`` cuts its result here.
_MOST_HASHED = 1024


def answer_is_right(given: Any, label: Any) -> bool:
    """Return whether an answer equals the label: numbers within 0.01, texts as sets where there are several.

    Args:
        given: a text, or a list of texts and numbers.
    """
    ours, theirs = cleaned(given), cleaned(label)
    numbers = [[_number(text) for text in texts] for texts in (ours, theirs)]
    if all(number is not None for each in numbers for number in each):
        return _numbers_match([n for n in numbers[0] if n is not None], [n for n in numbers[1] if n is not None])
    return ours == theirs if len(ours) == len(theirs) == 1 else set(ours) == set(theirs)


def _numbers_match(given: Sequence[float], wanted: Sequence[float]) -> bool:
    left = list(wanted)
    for number in given:
        near = next((at for at, other in enumerate(left) if abs(number - other) <= 0.01), None)
        if near is None:
            return False
        del left[near]
    return not left


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def cleaned(answer: Any) -> list[str]:
    """The texts of an answer without ``%``, thousands' commas and quotes; what stands for nothing is ``0``."""
    if isinstance(answer, str):
        parsed = _listed(answer.strip())
        answer = [answer] if parsed is None else parsed
    elif not isinstance(answer, list | tuple):
        answer = [answer]
    return [_cleaned(item[0] if isinstance(item, list | tuple) and len(item) == 1 else item) for item in answer]


def _listed(text: str) -> Sequence[Any] | None:
    """The items of a list written as a text; None if it is none."""
    if not (text.startswith("[") and text.endswith("]")) or len(text) > 100_000:
        return None
    try:
        parsed = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return [part for part in text[1:-1].split(",") if part.strip()]
    return parsed if isinstance(parsed, list) else None


def _cleaned(item: Any) -> str:
    text = str(item).strip().strip("'\"").strip()
    if text.endswith("%"):
        return text[:-1].strip()
    if "," in text and not (text.startswith("[") or text.endswith("]")):
        text = text.replace(",", "")
    return "0" if text.lower() in _NOTHING else text


def table_hash(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str | None:
    """AgentBench's hash of a table: the MD5 of the sorted beginnings of the MD5s of its rows; None without rows.

    Args:
        columns: those that count, in their order.
        rows: column names to values; a column that is missing or None is left out.
    """
    if not rows:
        return None
    lines = [",".join(as_text(row[name]) for name in columns if row.get(name) is not None) for row in rows]
    return _md5(",".join(sorted(_md5(line)[:5] for line in lines))[:_MOST_HASHED])


def _md5(text: str) -> str:
    return hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
