"""The base of WorkBench's functions: their arguments, and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Annotated

from pydantic import Field

from rollenv.envs.tools.workbench.tables import Row

#: A text, or a number that is taken as one.
Text = Annotated[str, Field(coerce_numbers_to_str=True)] | None

TODAY = "2023-11-30"
#: The most rows that most searches return.
MOST = 5


def has(row: Row, column: str, text: str) -> bool:
    """Whether a field contains a text, upper and lower case being the same.

    Args:
        row: of a table.
        column: of the field.
        text: to look for.
    """
    return text.lower() in (row[column] or "").lower()


def quoted(names: Iterable[str]) -> str:
    """Names as they are listed in a message."""
    return ", ".join(repr(name) for name in names)


def between(first: str | None, last: str | None, column: str, whole_days: bool = False) -> Callable[[Row], bool] | str:
    """A test for rows whose time is not before the first and not after the last, or what is wrong with these.

    Args:
        first: the earliest time, or None.
        last: the latest time, or None.
        column: with the time of a row.
        whole_days: whether the time of day does not matter.
    """
    try:
        low, high = (_time(text, whole_days) if text else None for text in (first, last))
    except ValueError:
        return f"{first or ''} or {last or ''} is not a time; write it as {TODAY} or {TODAY} 09:00:00."[:300]

    def test(row: Row) -> bool:
        at = _time(row[column], whole_days)
        return (low is None or low <= at) and (high is None or at <= high)

    return test if first or last else lambda row: True


def _time(text: str, whole_days: bool) -> datetime:
    at = datetime.fromisoformat(text.strip()).replace(tzinfo=None)
    return at.replace(hour=0, minute=0, second=0, microsecond=0) if whole_days else at
