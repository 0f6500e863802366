"""Emulation of MySQL: SQLite, with statements that sqlglot reads as MySQL's and writes as SQLite's."""

from __future__ import annotations

import functools
import logging
import sqlite3
from collections.abc import Collection, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple

from rollenv.core.needs import extra
from rollenv.envs.tools.sql.database import LIMITS, STEPS, Database, SqlError, SqlResult, quoted
from rollenv.plugins.suites.mysql_functions import prepare

with extra("envs", "Reading MySQL"):
    from sqlglot import exp
    from sqlglot.dialects.mysql import MySQL
    from sqlglot.errors import ParseError, SqlglotError
    from sqlglot.parsers.mysql import MySQLParser

_TABLES = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%' ORDER BY 1"
#: Functions whose names have another meaning in SQLite.
_RENAMED = {"left", "right", "insert", "length", "char", "round", "format", "sum", "avg", "date", "time"}
#: SQLite's types of casts; the others are texts.
_CASTS = {
    **dict.fromkeys(("INT", "UINT", "BIGINT", "UBIGINT"), "INTEGER"),
    **dict.fromkeys(("DECIMAL", "UDECIMAL", "DOUBLE", "FLOAT"), "REAL"),
}
_COMPARES = (exp.EQ, exp.NEQ, exp.LT, exp.GT, exp.LTE, exp.GTE, exp.NullSafeEQ)

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # its warnings are about the agent's statements


class _Parser(MySQLParser):
    FUNCTIONS: ClassVar[dict[str, Any]] = {}  # as they are written: mysql_functions.py has them by their names
    FUNCTION_PARSERS = {
        name: MySQLParser.FUNCTION_PARSERS[name] for name in ("CAST", "CONVERT", "EXTRACT", "GROUP_CONCAT")
    }


class _Dialect(MySQL):
    Parser = _Parser


class MySql(Database):
    """A database for MySQL's SELECT, INSERT, UPDATE, DELETE, table definitions and SHOW.

    Some queries that MySQL rejects are executed: columns that a GROUP BY does not determine, LIMIT in a subquery of IN,
    derived tables without a name.

    Args:
        text_columns: lower-case names of the text columns.
    """

    def __init__(self, image: bytes = b"", text_columns: Collection[str] = (), steps: int = STEPS):
        super().__init__(image, prepare, steps)
        self.text_columns = frozenset(text_columns)

    def execute(self, query: str, values: Sequence[Any] = ()) -> SqlResult:
        statement = read(query, self.text_columns)
        if not statement.shows:
            return super().execute(statement.sql, values)
        if statement.shows == "TABLES":
            return SqlResult(("Tables",), super().execute(_TABLES).rows)
        if statement.shows == "CREATE TABLE":
            definition = "SELECT name, sql FROM sqlite_schema WHERE lower(name) = ?"
            return SqlResult(("Table", "Create Table"), super().execute(definition, [statement.table.lower()]).rows)
        if statement.shows == "COLUMNS":
            return self._columns(statement.table)
        raise SqlError("of the statements that show something there are SHOW TABLES, SHOW COLUMNS FROM and DESCRIBE")

    def _columns(self, table: str) -> SqlResult:
        rows = super().execute(f"PRAGMA table_info({quoted(table)})").rows
        if not rows:
            raise SqlError(f"Table {table[:100]!r} doesn't exist")
        shown = [
            (field, kind.lower().encode(), "NO" if required or key else "YES", "PRI" if key else "", default, "")
            for _, field, kind, required, default, key in rows
        ]
        return SqlResult(("Field", "Type", "Null", "Key", "Default", "Extra"), shown)


class Statement(NamedTuple):
    """A statement of MySQL, translated."""

    sql: str = ""
    """The statement for SQLite."""
    shows: str = ""
    """Kind of a statement that shows something, such as ``COLUMNS``; there is no SQL for it."""
    table: str = ""
    """The table that is shown."""
    items: Sequence[tuple[str, Set[str]]] = ()
    """For each item of a SELECT: the function that it is a call of, or nothing, and the names in it, in lower case."""


@functools.lru_cache(maxsize=512)
def read(query: str, text_columns: frozenset[str] = frozenset()) -> Statement:
    """Translate a MySQL statement to SQLite, as far as possible.

    Args:
        text_columns: lower-case names of text columns, which MySQL compares with numbers as numbers.

    Raises:
        SqlError: it is none, is several, or is too long or nested too deeply.
    """
    if len(query) > LIMITS[sqlite3.SQLITE_LIMIT_SQL_LENGTH]:
        raise SqlError("the query is too long")
    try:
        # Parsing is recursive. In a thread of its own, the result does not depend on the depth of the caller's stack.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_translate, query, text_columns).result()
    except ParseError as error:
        found = error.errors[0] if error.errors else {}
        near = f"{found.get('highlight', '')}{found.get('end_context', '')}"[:80]
        raise SqlError(f"You have an error in your SQL syntax near {near!r}") from None
    except SqlglotError:
        raise SqlError("You have an error in your SQL syntax: a quote or a comment does not end") from None
    except RecursionError:
        raise SqlError("the query is nested too deeply") from None


def _translate(query: str, text_columns: frozenset[str]) -> Statement:
    trees = [tree for tree in _Dialect().parse(query) if tree]
    if len(trees) != 1:
        raise SqlError("execute one statement at a time")
    tree = trees[0]
    if isinstance(tree, exp.Show):
        return Statement(shows=tree.name, table=tree.text("target"))
    if isinstance(tree, exp.Describe):
        return Statement(shows="COLUMNS" if isinstance(tree.this, exp.Table) else "QUERY", table=tree.this.name)
    items = []
    for item in tree.selects if isinstance(tree, exp.Query) else ():
        call = item.unalias()
        names = {part.name.lower() for part in item.find_all(exp.Identifier)}
        items.append((call.name.lower() if isinstance(call, exp.Anonymous) else "", names))
    for node in reversed(list(tree.walk())):  # every node after those below it
        _adapt(node, text_columns)
    return Statement(tree.sql(dialect="sqlite"), items=items)


def _adapt(node: exp.Expr, text_columns: frozenset[str]) -> None:
    """Change a node where SQLite would understand it otherwise than MySQL."""
    parent = node.parent
    if isinstance(node, exp.Anonymous) and node.name.lower() in _RENAMED:
        node.set("this", f"mysql_{node.name.lower()}")
    elif isinstance(node, exp.Cast):
        kind = node.to.this.name
        node.set("to", exp.DataType.build(_CASTS.get(kind, "TEXT")))
        if kind in ("BINARY", "VARBINARY"):  # a text that is compared byte by byte
            node.replace(exp.Collate(this=node.copy(), expression=exp.var("BINARY")))
    elif isinstance(node, exp.Collate):
        node.replace(node.this)
    elif isinstance(node, exp.Table) and node.name.lower() == "dual" and isinstance(parent, exp.From):
        parent.pop()
    elif isinstance(node, exp.Select):
        node.set("operation_modifiers", None)
        group, order = node.args.get("group"), node.args.get("order")
        if group and order and not isinstance(parent, exp.SetOperation):
            # In MySQL, groups that ORDER BY leaves equal are in the order of their keys.
            order.set("expressions", [*order.expressions, *(key.copy() for key in group.expressions)])
    elif isinstance(node, exp.Subquery) and isinstance(parent, _COMPARES):
        # A subquery that is compared with a value fails if it has several rows.
        rows = exp.CTE(this=node.this, alias=exp.TableAlias(this=exp.to_identifier("mysql_rows"), columns=[_ONE]))
        single = exp.select(exp.Anonymous(this="mysql_single", expressions=[exp.column("one")])).from_("mysql_rows")
        single.set("with_", exp.With(expressions=[rows]))
        node.set("this", single)
    elif isinstance(node, exp.Column) and _is_compared_with_number(node) and node.name.lower() in text_columns:
        node.replace(exp.paren(exp.Add(this=node.copy(), expression=exp.Literal.number(0)), copy=False))


_ONE = exp.to_identifier("one")


def _is_compared_with_number(node: exp.Column) -> bool:
    parent = node.parent
    if node.table:
        return False
    if isinstance(parent, exp.Between):
        other = parent.args["low"]
    elif isinstance(parent, _COMPARES) and not isinstance(parent.parent, exp.Update):  # there it is an assignment
        other = parent.expression if parent.this is node else parent.this
    else:
        return False
    return bool((other.this if isinstance(other, exp.Neg) else other).is_number)
