"""SQLite for untrusted SQL: a deterministic database in memory, without files, within fixed limits."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import marshal
import math
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from rollenv.core.tools.backend import Backend, ToolError
from rollenv.envs.tools.sql.functions import MOST_LENGTH, add_functions

#: Adds functions and collations to a connection. The second argument charges a query for the steps of such a function.
Prepare = Callable[[sqlite3.Connection, Callable[[int], None]], None]


def quoted(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def table_image(
    name: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]], prepare: Prepare | None = None
) -> bytes:
    """Return the image of a database with one table.

    Args:
        columns: names and the rest of the definitions, such as ``TEXT``.
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
    """Return a random query on a table."""
    tables = columns_of(image)
    if not tables:
        return "SELECT 1"
    table, columns = rng.choice(tables)
    return f"SELECT `{rng.choice(columns)[1]}` FROM `{table}` LIMIT {rng.randint(1, 5)}"


@functools.lru_cache(maxsize=64)
def columns_of(image: bytes) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Return the tables of a database with the ``PRAGMA table_info`` of each; cached, read-only."""
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


@functools.lru_cache(maxsize=64)
def data_of(image: bytes) -> dict[str, Any]:
    """Return a database as JSON data: ``tables`` with SQL and rows, ``schema`` with other SQL; cached, read-only.

    Both are in the order of creation, which a query of ``sqlite_schema`` shows.
    """
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        if image:
            connection.deserialize(image)
        connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        found = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY rowid").fetchall()
        tables = {name: {"sql": sql, "rows": _rows(connection, name)} for kind, name, sql in found if kind == "table"}
        return {"tables": tables, "schema": {name: sql for kind, name, sql in found if kind != "table" and sql}}


def _rows(connection: sqlite3.Connection, table: str) -> dict[str, Any]:
    source = quoted(table)
    try:
        cursor = connection.execute(f"SELECT rowid, * FROM {source} ORDER BY rowid")
    except sqlite3.OperationalError:  # a table WITHOUT ROWID, whose order is that of its key
        cursor = connection.execute(f"SELECT row_number() OVER (), * FROM {source}")
    names = [each[0] for each in cursor.description[1:]]
    return {str(row[0]): dict(zip(names, map(_plain, row[1:]), strict=True)) for row in cursor}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        return {"text": value.encode("utf-8", "surrogateescape").hex()}  # text in SQLite may be invalid UTF-8
    if isinstance(value, float) and not math.isfinite(value):
        return {"real": str(value)}
    return value


def _stored(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "real" in value:
            return float(value["real"])
        return bytes.fromhex(value.get("blob") or value.get("text", ""))
    return value


def image_of(data: Mapping[str, Any], prepare: Prepare | None = None) -> bytes:
    """Return the image of a database from the JSON data of :func:`data_of`."""
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
    numbered = True
    try:
        connection.execute(f"SELECT rowid FROM {source} LIMIT 0")
    except sqlite3.OperationalError:
        numbered = False
    for number, row in rows.items():
        cells = {name: value for name, value in row.items() if name not in computed}
        names = (["rowid"] if numbered else []) + [quoted(name) for name in cells]
        values = ([int(number)] if numbered else []) + [_stored(value) for value in cells.values()]
        marks = (["?"] if numbered else []) + [
            ("CAST(? AS TEXT)" if isinstance(value, Mapping) and "text" in value else "?") for value in cells.values()
        ]
        connection.execute(f"INSERT INTO {source} ({', '.join(names)}) VALUES ({', '.join(marks)})", values)


#: Maximum number of steps of SQLite's virtual machine per query; a million take 0.02 to 0.2 seconds.
STEPS = 10_000_000
#: Maximum number of rows of a result, and of characters in all of them.
_MOST_ROWS, _MOST_CHARACTERS = 20_000, 2_000_000
#: Maximum number of pages (4,096 bytes) of a database.
_MOST_PAGES = 4096
#: Maximum memory of SQLite for all databases of the process, in bytes.
_HEAP = 1 << 30
#: Number of steps between calls of the progress handler.
_EVERY = 1000

LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MOST_LENGTH,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 1000,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 10,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_PREPARED = ("temp_store=2", f"max_page_count={_MOST_PAGES}", "trusted_schema=0", f"hard_heap_limit={_HEAP}")
_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_WRITES = {
    *(sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE, sqlite3.SQLITE_ALTER_TABLE),
    *(sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_VIEW),
    *(sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_DROP_VIEW),
    *(sqlite3.SQLITE_CREATE_TRIGGER, sqlite3.SQLITE_DROP_TRIGGER, sqlite3.SQLITE_REINDEX),
}
_PRAGMAS = {"page_count", "table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"}
#: Forbidden functions: their results depend on the connection, memory or random numbers.
_NO_FUNCTIONS = {
    *("load_extension", "random", "randomblob", "last_insert_rowid", "changes", "total_changes"),
    *("fts3_tokenizer", "sqlite_offset", "sqlite_source_id", "sqlite_compileoption_get", "sqlite_compileoption_used"),
}
_NO_TABLES = {"dbstat", "sqlite_stmt", "bytecode", "tables_used"}

#: Names of forbidden actions, for errors.
_FORBIDDEN = {
    sqlite3.SQLITE_ATTACH: "reaching other databases or files (ATTACH, VACUUM)",
    sqlite3.SQLITE_DETACH: "DETACH",
    sqlite3.SQLITE_TRANSACTION: "a transaction (every statement is final by itself)",
    sqlite3.SQLITE_SAVEPOINT: "a transaction (every statement is final by itself)",
    sqlite3.SQLITE_CREATE_VTABLE: "a virtual table",
    sqlite3.SQLITE_CREATE_TEMP_TABLE: "a temporary table",
}


class SqlError(Exception):
    """An error in a query; the message is for the agent."""


class SqlResult(NamedTuple):
    """The result of a statement."""

    columns: tuple[str, ...] = ()
    """Column names; empty for a statement that returns no table."""
    rows: Sequence[tuple[Any, ...]] = ()
    changed: int = 0
    """Number of rows inserted, changed or deleted."""


class _Guard:
    """Limits and permissions of a connection. It has no reference to the connection, which would be a cycle."""

    def __init__(self, steps: int):
        self.steps, self.spent = steps, 0
        self.denied, self.written = "", False

    def progress(self) -> bool:
        """Count steps; True stops the query. SQLite's progress handler."""
        self.spent += _EVERY
        return self.spent > self.steps

    def charge(self, steps: int) -> None:
        """Count the steps of a slow function."""
        self.spent += steps
        if self.spent > self.steps:
            raise sqlite3.OperationalError("too long")

    def authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """Allow or forbid an action of a statement. SQLite's authorizer."""
        if action in _READS:
            allowed, what = (first or "").lower() not in _NO_TABLES, f"reading {first}"
        elif action in _WRITES:
            allowed = self.written = True
            what = ""
        elif action == sqlite3.SQLITE_FUNCTION:
            allowed, what = (second or "").lower() not in _NO_FUNCTIONS, f"the function {second}"
        elif action == sqlite3.SQLITE_PRAGMA:
            allowed, what = (first or "").lower() in _PRAGMAS, f"PRAGMA {first}"
        else:
            allowed, what = False, _FORBIDDEN.get(action, "this kind of statement")
        if not allowed:
            self.denied = self.denied or what
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


class Database:
    """The private database of an episode, opened at the first query.

    Args:
        image: the initial database, from :func:`image_of` or :attr:`image`; databases may share it.
        prepare: adds functions and collations to every new connection; see :data:`Prepare`.
    """

    def __init__(self, image: bytes = b"", prepare: Prepare | None = None, steps: int = STEPS):
        self.prepare, self._image, self._steps = prepare, image, steps
        self._connection: sqlite3.Connection | None = None
        self._helper: sqlite3.Connection | None = None
        self._guard = _Guard(steps)

    @property
    def image(self) -> bytes:
        """The database as bytes; the same object until something changes."""
        if self._guard.written and self._connection is not None:
            self._image = self._connection.serialize()
        self._guard.written = False
        return self._image

    @image.setter
    def image(self, image: bytes) -> None:
        if self._guard.written or image is not self._image:
            self.close()
            self._image = image

    def twin(self) -> Self:
        """Return an independent copy."""
        other = copy.copy(self)
        other._image, other._guard = self.image, _Guard(self._steps)
        other._connection = other._helper = None
        return other

    def close(self) -> None:
        """Close the connection; changes since the last read of :attr:`image` are lost."""
        for each in (self._connection, self._helper):
            if each is not None:
                each.close()  # it is part of a reference cycle, so it would live until the next garbage collection
        self._connection, self._helper, self._guard = None, None, _Guard(self._steps)

    def __del__(self) -> None:
        self.close()

    def execute(self, query: str, values: Sequence[Any] = ()) -> SqlResult:
        """Execute one statement atomically.

        Raises:
            SqlError: the statement is wrong, forbidden, too long or too slow.
        """
        self._guard.denied, self._guard.spent = "", 0
        try:
            if self._connection is None:
                guard = self._guard
                connection = sqlite3.connect(
                    ":memory:", isolation_level=None, check_same_thread=False, cached_statements=0
                )
                if self._image:
                    connection.deserialize(self._image)
                for pragma in _PREPARED:
                    connection.execute(f"PRAGMA {pragma}")
                connection.text_factory = lambda text: text.decode("utf-8", "replace")
                for limit, value in LIMITS.items():
                    connection.setlimit(limit, value)
                self._helper = sqlite3.connect(":memory:", check_same_thread=False)
                add_functions(connection, self._helper, guard.charge)
                if self.prepare:
                    self.prepare(connection, guard.charge)
                connection.set_progress_handler(guard.progress, _EVERY)
                connection.set_authorizer(guard.authorize)
                self._connection = connection
            connection = self._connection
            before = connection.total_changes
            with contextlib.closing(connection.cursor()) as cursor:
                cursor.execute(query, values)
                columns = tuple(each[0] for each in cursor.description or ())
                rows: list[tuple[Any, ...]] = []
                size = 0
                for row in cursor:
                    rows.append(row)
                    size += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
                    if len(rows) > _MOST_ROWS or size > _MOST_CHARACTERS:
                        raise ValueError(
                            f"the result is larger than {_MOST_ROWS} rows or {_MOST_CHARACTERS} characters; use LIMIT"
                        )
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError, RecursionError) as error:
            raise SqlError(self._explain(error)) from None
        return SqlResult(columns, rows, connection.total_changes - before)

    def _explain(self, error: BaseException) -> str:
        if self._guard.denied:
            return f"{self._guard.denied} is not allowed here"
        if self._guard.spent > self._steps:
            return f"the query takes too long: it was stopped after {self._steps} steps"
        if isinstance(error, MemoryError):
            return "the query needs too much memory"
        return str(error)[:1000].encode("utf-8", "backslashreplace").decode()


class SqlBackend(Backend):
    """A backend with a database, for subclasses that add functions and may have further data in :attr:`state`.

    :meth:`data` is shared and read-only. It has ``tables`` (for each its ``sql`` and its ``rows``, by rowid, as
    objects), ``schema`` (the SQL of indexes, views and triggers by name) and the keys of :attr:`state`.

    Args:
        database: owned by the backend from now on.
    """

    def __init__(self, database: Database, state: dict[str, Any] | None = None):
        super().__init__(state)
        self.database = database

    def query(self, query: str, values: Sequence[Any] = ()) -> SqlResult:
        """Execute one statement atomically."""
        try:
            return self.database.execute(query, values)
        except SqlError as error:
            raise ToolError(str(error)) from None

    def snapshot(self) -> Any:
        return marshal.dumps(self.state), self.database.image

    def restore(self, snapshot: Any) -> None:
        state, self.database.image = snapshot
        self.state = marshal.loads(state)

    def data(self) -> dict[str, Any]:
        return {**data_of(self.database.image), **self.state}

    def load(self, data: Mapping[str, Any]) -> None:
        if data != self.data():
            self.database.image = image_of(data, self.database.prepare)
            self.state = json.loads(json.dumps({k: v for k, v in data.items() if k not in ("tables", "schema")}))

    def twin(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.database = self.database.twin()
        other.state = marshal.loads(marshal.dumps(self.state))
        return other
