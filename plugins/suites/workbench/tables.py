"""The five tables of WorkBench and their operations, in plain Python with the results of the original's pandas."""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from rollenv.core.tools.backend import Backend, ToolError
from rollenv.plugins.suites.workbench import NEED

Row = Mapping[str, Any]

#: File and id column of each table that functions change.
TABLES = {
    "calendar": ("calendar_events", "event_id"),
    "emails": ("emails", "email_id"),
    "tasks": ("project_tasks", "task_id"),
    "customers": ("customer_relationship_manager_data", "customer_id"),
    "plots": ("", "file_path"),
}
#: Case-sensitive columns.
_CASED = ("status", "list_name", "board")


class Office(NamedTuple):
    """The data of the files; cached, read-only."""

    tables: Mapping[str, Mapping[str, Row]]
    visits: tuple[Row, ...]
    addresses: tuple[str, ...]


@functools.lru_cache(maxsize=2)
def _read(folder: Path) -> Office:
    def table(name: str) -> list[dict[str, Any]]:
        with open(folder / "processed" / f"{name}.csv", newline="", encoding="utf-8") as lines:
            return [{column: text or None for column, text in row.items()} for row in csv.DictReader(lines)]

    tables = {name: {row[key]: row for row in table(file)} if file else {} for name, (file, key) in TABLES.items()}
    visits = tuple({**row, "user_engaged": row["user_engaged"] == "True"} for row in table("analytics_data"))
    text = (folder / "raw" / "email_addresses.csv").read_text(encoding="utf-8")
    return Office(tables, visits, tuple(line.strip() for line in text.splitlines() if line.strip()))


def office() -> Office:
    """Return the initial tables of every task."""
    return _read(NEED.found())


def start() -> dict[str, Any]:
    """Return the initial state: rows by key for each table."""
    return {name: dict(rows) for name, rows in office().tables.items()}


class Tables(Backend):
    """The five tables. Rows are replaced, never modified, so that copies can share them."""

    def __init__(self) -> None:
        super().__init__(start())

    def snapshot(self) -> Any:
        return _copy(self.state)

    def restore(self, snapshot: Any) -> None:
        self.state = _copy(snapshot)

    def load(self, data: dict[str, Any]) -> None:
        self.restore(data)

    def pack(self) -> Any:
        tables = {
            name: each for name, rows in office().tables.items() if (each := _changed_rows(rows, self.state[name]))
        }
        return {"tables": tables}

    def unpack(self, packed: Any) -> None:
        self.state = start()
        for name, (numbers, rows) in packed["tables"].items():
            kept = self.state[name] | rows
            self.state[name] = {number: kept[number] for number in numbers}

    def rows(self, table: str) -> Iterator[Row]:
        """Return the rows of a table, in order."""
        return iter(self.state[table].values())

    def find(self, table: str, row_id: str) -> Row | None:
        """Return the first row with an id, or None."""
        key = TABLES[table][1]
        return next((row for row in self.rows(table) if row[key] == row_id), None)

    def field(self, table: str, row_id: str | None, field: str | None, what: str) -> Any:
        """Return one field of a row, or an error message; ``what`` is a kind of row, such as "Event"."""
        if not row_id:
            return f"{what} ID not provided."
        if not field:
            return "Field not provided."
        row = self.find(table, row_id)
        if row is None:
            return f"{what} not found."
        if field in self.columns(table):
            return {field: row.get(field)}
        return "Field not found."

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table."""
        return tuple(next(iter(office().tables[table].values()), {"file_path": None}))

    def next_id(self, table: str) -> int:
        """Return one more than the last id in alphabetical order."""
        last = max((row[TABLES[table][1]] for row in self.rows(table)), default="")
        try:
            return int(last) + 1
        except ValueError as error:
            raise ToolError(f"no new id can be given: the last one is {last!r}") from error

    def append(self, table: str, row: Row) -> None:
        """Append a row with all columns."""
        rows = self.state[table]
        key = base = str(row[TABLES[table][1]])
        number = 1
        while key in rows:
            key, number = f"{base}#{number + 1}", number + 1
        rows[key] = row

    def replace(self, table: str, row_id: str, field: str, value: Any) -> None:
        """Set a field of all rows with an id."""
        rows, key = self.state[table], TABLES[table][1]
        for number, row in rows.items():
            if row[key] == row_id:
                rows[number] = {**row, field: value}

    def remove(self, table: str, row_id: str | None, what: str) -> str:
        """Delete the rows with an id, and return a message; ``what`` is a kind of row, such as "Event"."""
        if not row_id:
            return f"{what} ID not provided."
        rows, key = self.state[table], TABLES[table][1]
        kept = {number: row for number, row in rows.items() if row[key] != row_id}
        if len(kept) == len(rows):
            return f"{what} not found."
        self.state[table] = kept
        return f"{what} deleted successfully."


def _copy(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dict(state[name]) for name in TABLES}


def _changed_rows(before: Mapping[str, Row], now: Mapping[str, Row]) -> list[Any]:
    """Return the keys of a table in order, and its new or changed rows; empty if nothing changed."""
    rows = {number: dict(row) for number, row in now.items() if before.get(number) is not row}
    return [list(now), rows] if rows or len(now) != len(before) else []


def same(one: Mapping[str, Any], other: Mapping[str, Any], fold: bool = True) -> bool:
    """Return whether two states have equal rows in the same order.

    Args:
        fold: ignore case, except in case-sensitive columns.
    """
    return all(len(one[name]) == len(other[name]) for name in TABLES) and all(
        a is b or _values(a, fold) == _values(b, fold)
        for name in TABLES
        for a, b in zip(one[name].values(), other[name].values(), strict=True)
    )


def _values(row: Row, fold: bool) -> dict[str, Any]:
    """Return the values to compare: in folded columns, values other than text count as missing."""
    return {
        column: value if not fold or column in _CASED else value.lower()
        for column, value in row.items()
        if (isinstance(value, str) if fold and column not in _CASED else value is not None)
    }


#: A text; numbers are converted.
Text = Annotated[str, Field(coerce_numbers_to_str=True)] | None

TODAY = "2023-11-30"
#: Maximum number of rows that most searches return.
MOST = 5


def has(row: Row, column: str, text: str) -> bool:
    """Return whether a field contains a text, ignoring case."""
    return text.lower() in (row[column] or "").lower()


def quoted(names: Iterable[str]) -> str:
    """List names for a message."""
    return ", ".join(repr(name) for name in names)


def between(first: str | None, last: str | None, column: str, whole_days: bool = False) -> Callable[[Row], bool] | str:
    """Return a filter for rows between two times, both included, or an error message about these."""
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
    if whole_days:
        return at.replace(hour=0, minute=0, second=0, microsecond=0)
    return at
