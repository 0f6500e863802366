"""InterCode's reward for the result of a query, and Spider's execution match."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby


def intercode_reward(given: Sequence[str], wanted: Sequence[str], ordered: bool = False) -> float:
    """The share of common rows in all rows of two results.

    Args:
        given: rows as texts, as :func:`~rollenv.envs.tools.spider.rows.row_texts` writes them.
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
    discordant = _inversions([pair[1] for pair in pairs])
    difference = total - ties_first - ties_second + _ties(pairs) - 2 * discordant
    tau = difference / math.sqrt(total - ties_first) / math.sqrt(total - ties_second)
    return min(1.0, max(-1.0, tau))


def _ties(ordered: Sequence[object]) -> int:
    """Pairs of equal values."""
    return sum(count * (count - 1) // 2 for count in (len(list(group)) for _, group in groupby(ordered)))


def _inversions(values: Sequence[str]) -> int:
    """Pairs in which the later value is smaller."""
    rank = {value: place for place, value in enumerate(sorted(set(values)), 1)}
    tree = [0] * (len(rank) + 1)
    found = 0
    for seen, value in enumerate(values):
        at, below = rank[value], 0
        while at:
            below += tree[at]
            at &= at - 1
        found += seen - below
        at = rank[value]
        while at < len(tree):
            tree[at] += 1
            at += at & -at
    return found
