"""MySQL for agents that were told of one: SQLite that understands most of its dialect."""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from rollenv.envs.tools.sql.data import columns_of, quoted
from rollenv.envs.tools.sql.database import Database, Result, SqlError
from rollenv.envs.tools.sql.limits import LIMITS, STEPS
from rollenv.envs.tools.sql.mysql_functions import prepare
from rollenv.envs.tools.sql.mysql_groups import with_groups
from rollenv.envs.tools.sql.mysql_strict import Table, cached_complaint
from rollenv.envs.tools.sql.mysql_text import Token, tokens, translated

_TABLES = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%' ORDER BY 1"


class MySql(Database):
    """A database that takes MySQL's SELECT, INSERT, UPDATE, DELETE and table definitions, and shows its tables.

    Args:
        image: as of a :class:`~rollenv.envs.tools.sql.Database`.
        text_columns: names, in lower case, of the columns of text.
        strict: refuse what MySQL refuses, such as columns that a GROUP BY does not determine.
        steps: the most steps of a query.
    """

    def __init__(self, image: bytes = b"", text_columns: Collection[str] = (), strict: bool = True, steps: int = STEPS):
        super().__init__(image, prepare, steps)
        self.text_columns, self.strict = frozenset(text_columns), strict

    def execute(self, query: str, values: Sequence[Any] = ()) -> Result:
        first = re.match(r"\W*(\w+)", query[:1000])
        word = first[1].lower() if first else ""
        if word in ("show", "describe", "desc", "explain") and len(query) < 1000:
            return self._shown(word, tokens(query))
        if len(query) > LIMITS[sqlite3.SQLITE_LIMIT_SQL_LENGTH]:
            raise SqlError("the query is too long")
        tables = _tables(self.image)
        if self.strict and word in ("select", "with") and (problem := cached_complaint(query, tables)):
            raise SqlError(problem)
        return super().execute(_as_sqlite(query, self.text_columns, tables), values)

    def _shown(self, word: str, found: list[Token]) -> Result:
        words = [token.text.lower() for token in found]
        if word == "show" and words[1:2] == ["tables"]:
            query = (
                "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%' ORDER BY 1"
            )
            return Result(("Tables",), super().execute(query).rows)
        if word == "show" and words[1:3] == ["create", "table"] and len(found) > 3:
            rows = super().execute("SELECT name, sql FROM sqlite_schema WHERE lower(name) = ?", [words[3]]).rows
            return Result(("Table", "Create Table"), rows)
        names = [found[at + 1] for at, token in enumerate(found[:-1]) if token.word in ("from", "in")]
        if word == "show" and words[1:2] in (["columns"], ["fields"]) and names:
            return self._columns(found, found.index(names[0]))
        if word != "show" and len(found) > 1 and found[1].kind in ("name", "word") and found[1].word != "select":
            return self._columns(found, 1)
        raise SqlError("of the statements that show something there are SHOW TABLES, SHOW COLUMNS FROM and DESCRIBE")

    def _columns(self, found: list[Token], at: int) -> Result:
        name = found[at + 2].text if len(found) > at + 2 and found[at + 1].text == "." else found[at].text
        rows = super().execute(f"PRAGMA table_info({quoted(name)})").rows
        if not rows:
            raise SqlError(f"Table {name[:100]!r} doesn't exist")
        shown = [
            (field, kind.lower().encode(), "NO" if required or key else "YES", "PRI" if key else "", default, "")
            for _, field, kind, required, default, key in rows
        ]
        return Result(("Field", "Type", "Null", "Key", "Default", "Extra"), shown)


@functools.lru_cache(maxsize=512)
def _as_sqlite(query: str, text_columns: frozenset[str], tables: tuple[tuple[str, Table], ...]) -> str:
    return translated(with_groups(tokens(query), dict(tables)), text_columns)


@functools.lru_cache(maxsize=256)
def _tables(image: bytes) -> tuple[tuple[str, Table], ...]:
    found = []
    for name, rows in columns_of(image):
        columns, key = {row[1].lower() for row in rows}, {row[1].lower() for row in rows if row[5]}
        found.append((name.lower(), Table(frozenset(columns), frozenset(key))))
    return tuple(found)
