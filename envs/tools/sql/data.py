"""A SQLite database as bytes and as JSON data."""

from __future__ import annotations

import contextlib
import functools
import math
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

#: Adds functions and collations to a connection; it is given a function to call with the steps that one is worth.
Prepare = Callable[[sqlite3.Connection, Callable[[int], None]], None]


def quoted(name: str) -> str:
    """An identifier as SQL."""
    return '"' + name.replace('"', '""') + '"'


def table_image(
    name: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]], prepare: Prepare | None = None
) -> bytes:
    """The image of a database with one table.

    Args:
        columns: their names and what follows in their definition, such as ``TEXT``.
        rows: a value for each column.
        prepare: adds the collations that the columns name.
    """
    sql = f"CREATE TABLE {quoted(name)} ({', '.join(f'{quoted(column)} {kind}' for column, kind in columns)})"
    with _opened(prepare) as connection:
        connection.execute(sql)
        connection.execute("BEGIN")
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {quoted(name)} VALUES ({marks})", [tuple(row) for row in rows])
        connection.execute("COMMIT")
        return connection.serialize()


def random_query(image: bytes, rng: random.Random) -> str:
    """A query that looks at a table."""
    tables = columns_of(image)
    if not tables:
        return "SELECT 1"
    table, columns = rng.choice(tables)
    return f"SELECT `{rng.choice(columns)[1]}` FROM `{table}` LIMIT {rng.randint(1, 5)}"


@functools.lru_cache(maxsize=64)
def columns_of(image: bytes) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """The tables of a database, and what ``PRAGMA table_info`` says of the columns of each; not to be changed."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        if image:
            connection.deserialize(image)
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1").fetchall()
        return [(name, connection.execute(f"PRAGMA table_info({quoted(name)})").fetchall()) for (name,) in tables]


@contextlib.contextmanager
def _opened(prepare: Prepare | None) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        if prepare:
            prepare(connection, lambda steps: None)
        yield connection


def data_of(image: bytes) -> dict[str, Any]:
    """A database as JSON data: ``tables`` with their SQL and rows, and the SQL of everything else in ``schema``."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        if image:
            connection.deserialize(image)
        connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        found = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name, type").fetchall()
        tables = {name: {"sql": sql, "rows": _rows(connection, name)} for kind, name, sql in found if kind == "table"}
        return {"tables": tables, "schema": {name: sql for kind, name, sql in found if kind != "table" and sql}}


def _rows(connection: sqlite3.Connection, table: str) -> dict[str, Any]:
    source = quoted(table)
    try:
        cursor = connection.execute(f"SELECT rowid, * FROM {source} ORDER BY rowid")
    except sqlite3.OperationalError:  # a table without rowids has its rows in the order of its key
        cursor = connection.execute(f"SELECT row_number() OVER (), * FROM {source}")
    names = [each[0] for each in cursor.description[1:]]
    return {str(row[0]): dict(zip(names, map(_plain, row[1:]), strict=True)) for row in cursor}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        return {"text": value.encode("utf-8", "surrogateescape").hex()}  # SQLite's text need not be valid
    if isinstance(value, float) and not math.isfinite(value):
        return {"real": str(value)}
    return value


def _stored(value: Any) -> Any:
    if isinstance(value, Mapping):
        return float(value["real"]) if "real" in value else bytes.fromhex(value.get("blob") or value.get("text", ""))
    return value


def _mark(value: Any) -> str:
    return "CAST(? AS TEXT)" if isinstance(value, Mapping) and "text" in value else "?"


def image_of(data: Mapping[str, Any], prepare: Prepare | None = None) -> bytes:
    """The image of a database that :func:`data_of` described.

    Args:
        data: with ``tables`` and ``schema``.
        prepare: adds the collations that it names.
    """
    with _opened(prepare) as connection:
        connection.execute("BEGIN")
        own = sorted(data["tables"].items(), key=lambda each: each[0].startswith("sqlite_"))
        for name, table in own:
            if not name.startswith("sqlite_"):
                connection.execute(table["sql"])
        for name, table in own:
            _fill(connection, name, table["rows"])
        for sql in data.get("schema", {}).values():
            connection.execute(sql)
        connection.execute("COMMIT")
        return connection.serialize()


def _fill(connection: sqlite3.Connection, table: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    source = quoted(table)
    kinds = connection.execute(f"PRAGMA table_xinfo({source})").fetchall()
    computed = {column[1] for column in kinds if column[6] in (2, 3)}
    if table == "sqlite_sequence":
        connection.execute("DELETE FROM sqlite_sequence")
    numbered = _has_rowid(connection, source)
    for number, row in rows.items():
        cells = {name: value for name, value in row.items() if name not in computed}
        names = (["rowid"] if numbered else []) + [quoted(name) for name in cells]
        values = ([int(number)] if numbered else []) + [_stored(value) for value in cells.values()]
        marks = (["?"] if numbered else []) + [_mark(value) for value in cells.values()]
        connection.execute(f"INSERT INTO {source} ({', '.join(names)}) VALUES ({', '.join(marks)})", values)


def _has_rowid(connection: sqlite3.Connection, source: str) -> bool:
    try:
        connection.execute(f"SELECT rowid FROM {source} LIMIT 0")
    except sqlite3.OperationalError:
        return False
    return True
