"""InterCode's reward for the result of a query: rows as MySQL's Python connector returns them, compared as texts."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Collection, Sequence
from decimal import ROUND_HALF_UP, Decimal
from itertools import groupby
from typing import Any

from rollenv.envs.tools.sql.database import Result
from rollenv.envs.tools.sql.mysql import Token, closing, tokens


def row_texts(result: Result, query: str, floats: Collection[str] = ()) -> list[str]:
    """A text for each row of a result; equal rows of MySQL have equal texts.

    Args:
        query: that it is of; its sums and averages of whole numbers are decimals.
        floats: the names, in lower case, of columns of floating point numbers and of texts.
    """
    items = _items(tokens(query))
    kinds = ["" if any(token.text.lower() in floats for token in item) else _kind(item) for item in items]
    if len(kinds) != len(result.columns):
        kinds = [""] * len(result.columns)
    return [str(tuple(map(_typed, row, kinds))) for row in result.rows]


def _typed(value: Any, kind: str) -> Any:
    """A value of a column that is a ``sum`` or ``avg`` of whole numbers, or neither."""
    if value is None or not kind:
        return value
    if isinstance(value, int):
        return Decimal(value) if kind == "sum" else Decimal(value).quantize(Decimal("0.0001"))
    if isinstance(value, float) and kind == "avg" and round(value, 4) == value:  # as averages of whole numbers are
        return Decimal(repr(value)).quantize(Decimal("0.0001"), ROUND_HALF_UP)
    return value


def _items(found: list[Token]) -> list[list[Token]]:
    """The items of the outermost select list."""
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
    """``sum`` or ``avg`` of an item that is one call of it, with or without a name of its own."""
    if len(item) < 3 or item[0].word not in ("sum", "avg") or item[1].text != "(":
        return ""
    rest = item[closing(item, 1) + 1 :]
    return item[0].word if len(rest) < 2 or rest[0].word == "as" else ""


def intercode_reward(given: Sequence[str], wanted: Sequence[str], ordered: bool = False) -> float:
    """The share of common rows in all rows of two results.

    Args:
        given: rows as texts, as :func:`row_texts` writes them.
        wanted: rows of the gold query.
        ordered: multiply it with Kendall's tau-b of the common rows' order, rounded, as InterCode's current code does.
    """
    ours, theirs = Counter(given), Counter(wanted)
    common, union = ours & theirs, ours | theirs
    if not union:
        return 1.0
    share = common.total() / union.total()
    tau = kendall_tau(_of(given, common), _of(wanted, common)) if common and ordered else math.nan
    return share if math.isnan(tau) else round(tau * share, 2)


def _of(rows: Sequence[str], common: Counter[str]) -> list[str]:
    """The first of the rows that are in a multiset."""
    left = common.copy()
    kept = []
    for row in rows:
        if left[row] > 0:
            left[row] -= 1
            kept.append(row)
    return kept


def kendall_tau(first: Sequence[str], second: Sequence[str]) -> float:
    """Kendall's tau-b of the values of two lists, position by position; nan where one has a single value."""
    pairs = sorted(zip(first, second, strict=True))
    total = len(pairs) * (len(pairs) - 1) // 2
    ties_first, ties_second = _ties(sorted(first)), _ties(sorted(second))
    if ties_first == total or ties_second == total:
        return math.nan
    discordant, seen = 0, list[str]()
    for _, value in pairs:
        at = bisect.bisect_right(seen, value)
        discordant += len(seen) - at
        seen.insert(at, value)
    difference = total - ties_first - ties_second + _ties(pairs) - 2 * discordant
    tau = difference / math.sqrt(total - ties_first) / math.sqrt(total - ties_second)
    return min(1.0, max(-1.0, tau))


def _ties(ordered: Sequence[object]) -> int:
    """Pairs of equal values."""
    return sum(count * (count - 1) // 2 for count in (len(list(group)) for _, group in groupby(ordered)))
