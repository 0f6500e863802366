"""Rows as MySQL's Python connector returns them, as texts that InterCode compares."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from rollenv.envs.tools.sql.database import Result
from rollenv.envs.tools.sql.mysql_text import Token, tokens


def row_texts(result: Result, query: str, floats: Collection[str] = ()) -> list[str]:
    """A text for each row of a result; equal rows of MySQL have equal texts.

    Args:
        query: that it is of; its sums and averages of whole numbers are decimals.
        floats: the names, in lower case, of columns of floating point numbers and of texts.
    """
    exact = _exact_columns(query, len(result.columns), floats)
    return [str(tuple(_typed(value, kind) for value, kind in zip(row, exact, strict=True))) for row in result.rows]


def _typed(value: Any, kind: str) -> Any:
    if value is None or not kind:
        return value
    if isinstance(value, int):
        return Decimal(value) if kind == "sum" else Decimal(value).quantize(Decimal("0.0001"))
    if isinstance(value, float) and kind == "avg" and _whole_parts(value):
        return Decimal(repr(value)).quantize(Decimal("0.0001"), ROUND_HALF_UP)
    return value


def _whole_parts(value: float) -> bool:
    """Return whether it has four decimals at most, as MySQL's averages of whole numbers have."""
    return round(value, 4) == value


def _exact_columns(query: str, count: int, floats: Collection[str]) -> list[str]:
    """For each column of the outermost SELECT: ``sum`` or ``avg`` if it is one of whole numbers."""
    items = _items(tokens(query))
    kinds = ["" if any(token.text.lower() in floats for token in item) else _kind(item) for item in items]
    return kinds if len(kinds) == count else [""] * count


def _items(found: list[Token]) -> list[list[Token]]:
    """The items of the select list."""
    if not found or found[0].word != "select":
        return []
    items: list[list[Token]] = [[]]
    depth = 0
    for token in found[1:]:
        sign = token.text if token.kind == "sign" else ""
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and token.word == "from":
            break
        if depth == 0 and sign == ",":
            items.append([])
        else:
            items[-1].append(token)
    return items


def _kind(item: Sequence[Token]) -> str:
    """Of an item that is one call of SUM or AVG, with or without a name of its own."""
    word = item[0].word if item else ""
    if word not in ("sum", "avg") or len(item) < 3 or item[1].text != "(":
        return ""
    depth = 0
    for at, token in enumerate(item):
        sign = token.text if token.kind == "sign" else ""
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and at:
            rest = item[at + 1 :]
            return word if not rest or rest[0].word == "as" or len(rest) == 1 else ""
    return ""
