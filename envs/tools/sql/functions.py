"""Deterministic, bounded versions of SQLite's functions."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Any

#: The current time of every episode.
NOW = "2023-11-30 12:00:00"
#: Maximum size of a value, in bytes.
MOST_LENGTH = 100_000
#: Number of steps that a call of a Python function counts as.
_CALL = 50
_MOMENTS = ("date", "time", "datetime", "julianday", "unixepoch")
_ZONES = {"localtime", "utc"}


def add_functions(connection: sqlite3.Connection, helper: sqlite3.Connection, charge: Callable[[int], None]) -> None:
    """Replace functions of a connection.

    Args:
        helper: another connection, with SQLite's own functions; it must stay open as long.
        charge: counts steps of the virtual machine for a call.
    """
    helper.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_LENGTH)
    _add_moments(connection, helper)
    _add_metered(connection, helper, charge)


def _add_moments(connection: sqlite3.Connection, helper: sqlite3.Connection) -> None:
    def moment(name: str, first: int) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            given = list(values[:first]) + [each for each in values[first:] if str(each).strip().lower() not in _ZONES]
            if len(given) == first:
                given.append(NOW)
            elif str(given[first]).strip().lower() == "now":
                given[first] = NOW
            return helper.execute(f"SELECT {name}({', '.join('?' * len(given))})", given).fetchone()[0]

        return call

    for name in _MOMENTS:
        connection.create_function(name, -1, moment(name, 0), deterministic=True)
    connection.create_function("strftime", -1, moment("strftime", 1), deterministic=True)
    for name, value in (("date", NOW[:10]), ("time", NOW[11:]), ("timestamp", NOW)):
        connection.create_function(f"current_{name}", 0, lambda value=value: value, deterministic=True)


def _add_metered(connection: sqlite3.Connection, helper: sqlite3.Connection, charge: Callable[[int], None]) -> None:
    def like(pattern: Any, text: Any, escape: str | None = None) -> bool | None:
        if pattern is None or text is None:
            return None
        pattern, text = _text(pattern), _text(text)
        charge(_CALL + len(pattern) * len(text) // 200)
        return matches(pattern, text, escape)

    def metered(name: str, searches: bool) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            sizes = sorted(len(value) for value in values if isinstance(value, str | bytes))
            charge(_CALL + sizes[-1] * sizes[0] // 1000 if searches and len(sizes) > 1 else _CALL)
            result = helper.execute(f"SELECT {name}({', '.join('?' * len(values))})", values).fetchone()[0]
            charge((sum(sizes) + len(result if isinstance(result, str | bytes) else "")) // 10)
            return result

        return call

    for count in (2, 3):
        connection.create_function("like", count, like, deterministic=True)
    for name in ("glob", "instr", "replace"):
        connection.create_function(
            name, 3 if name == "replace" else 2, metered(name, searches=True), deterministic=True
        )
    for name in ("hex", "quote", "zeroblob", "printf", "format"):
        connection.create_function(name, -1, metered(name, searches=False), deterministic=True)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def matches(pattern: str, text: str, escape: str | None = None) -> bool:
    """Match a whole text with ``LIKE``: ``%`` for any characters, ``_`` for one, ignoring case.

    Args:
        escape: character before a literal wildcard.
    """
    parts: list[str] = [""]
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == escape and at + 1 < len(pattern):
            at += 1
            parts[-1] += re.escape(pattern[at])
        elif character == "%":
            parts.append("")
        else:
            parts[-1] += "." if character == "_" else re.escape(character)
        at += 1
    found = [re.compile(part, re.IGNORECASE | re.DOTALL) for part in parts]
    if len(found) == 1:
        return found[0].fullmatch(text) is not None
    start = found[0].match(text)
    if start is None:
        return False
    at = start.end()
    for part in found[1:-1]:
        match = part.search(text, at)
        if match is None:
            return False
        at = match.end()
    last = found[-1]
    width = len(re.sub(r"\\(.)", r"\1", last.pattern, flags=re.DOTALL))
    return len(text) - width >= at and last.fullmatch(text, len(text) - width) is not None
