"""SQLite for untrusted SQL: what it refuses, that it ends, that it copies, and what of MySQL it understands."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import sqlite3
import sys
import time
from collections.abc import Callable

import pytest

from rollenv.core.errors import MissingExtra
from rollenv.core.tools.backend import tool
from rollenv.envs.tools.sql.database import Database, SqlBackend, SqlError, data_of, image_of, table_image
from rollenv.plugins.suites.mysql import MySql, read
from rollenv.plugins.suites.mysql_functions import NO_PAD, PAD, prepare


class Notes(SqlBackend):
    """A backend with one function."""

    @tool
    def run(self, query: str) -> str:
        """Run a statement."""
        return str(self.query(query).rows)


@pytest.fixture
def image() -> bytes:
    return table_image("t", [("a", "TEXT"), ("b", "INTEGER")], [("one", 1), ("two", 2), (None, 3)])


@pytest.fixture
def mysql() -> Callable[..., MySql]:
    def made(*rows: tuple[object, ...], collation: str = NO_PAD) -> MySql:
        kinds = [("name", f"TEXT COLLATE {collation}"), ("year", f"TEXT COLLATE {collation}"), ("n", "INTEGER")]
        return MySql(table_image("t", kinds, rows, prepare), {"name", "year"})

    return made


@pytest.mark.parametrize(
    "query",
    [
        "ATTACH 'x.db' AS x",
        "VACUUM INTO 'x.db'",
        "PRAGMA writable_schema = 1",
        "PRAGMA journal_mode = DELETE",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('x')",
        "SELECT random()",
        "SELECT last_insert_rowid()",
        "CREATE VIRTUAL TABLE v USING fts5(x)",
        "CREATE TEMP TABLE v (x)",
        "SELECT * FROM dbstat",
        "UPDATE sqlite_schema SET sql = ''",
        "BEGIN",
        "SELECT 1; DELETE FROM t",
        "SELECT ?",
        "SELECT '\ud800'",
        "SELECT 1\x00",
        "SELECT " + "(" * 5000,
        "SELECT '" + "x" * 200_000 + "'",
    ],
)
def test_what_reaches_beyond_the_tables_is_an_error_and_changes_nothing(image: bytes, query: str) -> None:
    database = Database(image)
    with pytest.raises(SqlError):
        database.execute(query)
    assert data_of(database.image) == data_of(image)


@pytest.mark.combinations
@pytest.mark.parametrize(
    "query",
    [
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
        "SELECT sum(length(replace(hex(zeroblob(20000)), '0', 'ab'))) FROM c",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
        "SELECT count(hex(zeroblob(25000)) LIKE '%00001%') FROM c",
        "SELECT count(*) FROM t a, t b, t c, t d, t e, t f, t g, t h, t i, t j, t k, t l, t m, t n, t o, t p, t q",
    ],
)
def test_every_query_ends_after_the_same_steps(image: bytes, query: str) -> None:
    said = []
    for _ in range(2):
        database = Database(image)
        start = time.process_time()
        with pytest.raises(SqlError) as error:
            database.execute(query)
        assert time.process_time() - start < 10
        said.append(str(error.value))
        assert database.execute("SELECT count(*) FROM t").rows == [(3,)]
    assert said[0] == said[1]


def test_the_clock_stands_still(image: bytes) -> None:
    query = "SELECT date(), datetime('now'), CURRENT_TIMESTAMP, strftime('%s', 'NOW'), date('now', 'localtime')"
    first = Database(image).execute(query).rows
    assert first == Database(image).execute(query).rows
    assert first[0][0] == "2023-11-30"
    assert Database(image).execute("SELECT date('2020-01-31', '+1 day')").rows == [("2020-02-01",)]


def test_a_failed_statement_is_taken_back_whole(image: bytes) -> None:
    backend = Notes(Database(image))
    backend.call("run", {"query": "CREATE UNIQUE INDEX i ON t (b)"})
    before = backend.data()
    assert backend.call("run", {"query": "UPDATE t SET b = 7"}).failed
    assert backend.data() == before


def test_copies_share_nothing_and_states_come_back(image: bytes) -> None:
    first = Notes(Database(image))
    snapshot, digest = first.snapshot(), first.digest()
    second = copy.deepcopy(first)
    first.call("run", {"query": "DROP TABLE t"})
    assert second.digest() == digest != first.digest()
    first.restore(snapshot)
    assert first.digest() == digest
    second.call("run", {"query": "INSERT INTO t VALUES ('x', 9)"})
    third = Notes(Database(image))
    third.load(second.data())
    assert third.data() == second.data()
    assert third.call("run", {"query": "SELECT * FROM t"}) == second.call("run", {"query": "SELECT * FROM t"})


def test_every_kind_of_value_and_object_survives_as_data() -> None:
    database = Database(b"")
    for query in (
        "CREATE TABLE z (x)",
        "CREATE TABLE a (x INTEGER PRIMARY KEY AUTOINCREMENT, y AS (x + 1))",
        "INSERT INTO a (x) VALUES (5), (9)",
        "DELETE FROM a WHERE x = 9",
        "CREATE TABLE w (k PRIMARY KEY, v) WITHOUT ROWID",
        "INSERT INTO w VALUES ('b', x'00ff'), ('a', 9e999), (CAST(x'ff41' AS TEXT), NULL)",
        "CREATE INDEX i ON w (v)",
        "CREATE VIEW v AS SELECT * FROM a",
        "CREATE TRIGGER r AFTER INSERT ON w BEGIN INSERT INTO a (x) VALUES (NULL); END",
    ):
        database.execute(query)
    data = data_of(database.image)
    again = Database(image_of(data))
    assert data_of(again.image) == data
    for each in (database, again):
        each.execute("INSERT INTO w VALUES ('c', 1)")
    assert data_of(again.image) == data_of(database.image)
    tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    assert again.execute(tables).rows == database.execute(tables).rows == [("z",), ("a",), ("w",)]


def test_mysql_compares_text_without_accents_and_case(mysql: Callable[..., MySql]) -> None:
    rows = (("Montréal", "1999", 1), ("montreal ", "2001", 2), ("Bonn", "70", 3))
    query = "SELECT n FROM t WHERE name = 'MONTREAL'"
    assert mysql(*rows).execute(query).rows == [(1,)]
    assert mysql(*rows, collation=PAD).execute(query).rows == [(1,), (2,)]
    assert mysql(*rows).execute('SELECT n FROM `t` WHERE name LIKE "mont%"').rows == [(1,), (2,)]
    assert mysql(*rows).execute("SELECT n FROM t WHERE year > 100 ORDER BY n").rows == [(1,), (2,)]
    assert mysql(*rows).execute("SELECT n FROM t WHERE year BETWEEN 60 AND 80 LIMIT 0, 5").rows == [(3,)]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("'a\\nb'", "a\nb"),
        ("'it''s' 'x'", "it'sx"),
        ('"it\\"s"', 'it"s'),
        ("CONCAT('a', 1, 2.0)", "a12"),
        ("CONCAT('a', NULL)", None),
        ("CONCAT_WS('-', 'a', NULL, 'b')", "a-b"),
        ("IF(1 > 2, 'x', 'y')", "y"),
        ("LEFT('abc', 2)", "ab"),
        ("RIGHT('abc', 2)", "bc"),
        ("LENGTH('é')", 2),
        ("CHAR_LENGTH('é')", 1),
        ("SUBSTRING('abc', 2, 1)", "b"),
        ("SUBSTRING_INDEX('a.b.c', '.', -1)", "c"),
        ("YEAR('2020-05-06')", 2020),
        ("DATEDIFF('2020-05-06', '2020-05-01')", 5),
        ("ROUND(2.5)", 3.0),
        ("CAST('12abc' AS SIGNED)", 12),
        ("CAST('1.5' AS DECIMAL(10,2))", 1.5),
        ("1 <=> NULL", 0),
        ("1 = 0 || 1 = 1", 1),
        ("'abc' REGEXP '^A'", 1),
    ],
)
def test_mysql_expressions(mysql: Callable[..., MySql], expression: str, value: object) -> None:
    assert mysql().execute(f"SELECT {expression}").rows == [(value,)]


def test_mysql_refuses_to_compare_a_value_with_several_rows(mysql: Callable[..., MySql]) -> None:
    with pytest.raises(SqlError):
        mysql(("a", "1", 1), ("b", "2", 2)).execute("SELECT n FROM t WHERE n = (SELECT n FROM t)")


@pytest.mark.parametrize("opening", ["(", "f(", "NOT ", "- ", "CASE WHEN "])
def test_how_deeply_a_statement_may_be_nested_does_not_depend_on_its_caller(opening: str) -> None:
    def readable(count: int, frames: int) -> str:
        if frames:
            return readable(count, frames - 1)
        try:
            read.__wrapped__(f"SELECT {opening * count}")
        except SqlError as error:
            return str(error)
        return ""

    assert all(readable(count, 0) == readable(count, 500) for count in range(1, 150, 12))


@pytest.mark.parametrize(
    "query",
    [
        "",
        "SELECT n FROM t t t WHERE",
        "SELECT [n] FROM [t]",
        "SELEC n",
        "SELECT 'a",
        "SELECT AVG(First Elected) FROM t",
        ";",
    ],
)
def test_mysql_says_in_plain_text_where_a_statement_is_wrong(mysql: Callable[..., MySql], query: str) -> None:
    with pytest.raises(SqlError) as error:
        mysql().execute(query)
    assert str(error.value).isprintable()


def test_without_sqlglot_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    monkeypatch.delitem(sys.modules, "rollenv.plugins.suites.mysql")
    with pytest.raises(MissingExtra, match=r"rollenv\[envs\]"):
        importlib.import_module("rollenv.plugins.suites.mysql")


def test_mysql_takes_one_statement_at_a_time(mysql: Callable[..., MySql]) -> None:
    database = mysql(("a", "1", 1))
    with pytest.raises(SqlError):
        database.execute("SELECT n FROM t; DELETE FROM t")
    assert database.execute("SELECT n FROM t;").rows == [(1,)]
    assert database.execute("SELECT n FROM t WHERE BINARY name = 'a'").rows == [(1,)]
    assert database.execute("SELECT n FROM t WHERE BINARY name = 'A'").rows == []


def test_mysql_groups_joined_tables_and_shows_them() -> None:
    made = Database(b"", prepare)
    made.execute("CREATE TABLE p (id INTEGER PRIMARY KEY, name TEXT)")
    made.execute("CREATE TABLE q (pid INTEGER, v INTEGER)")
    made.execute("INSERT INTO p VALUES (1, 'a'), (2, 'b')")
    made.execute("INSERT INTO q VALUES (1, 5), (1, 6), (2, 7)")
    database = MySql(made.image)
    assert database.execute("SELECT name, count(*) FROM p JOIN q ON p.id = q.pid GROUP BY q.pid").rows
    assert database.execute("SELECT name, sum(v) AS s FROM p, q WHERE p.id = q.pid AND p.id = 1").rows == [("a", 11)]
    assert database.execute("SELECT p.name AS x, max(v) FROM p JOIN q ON id = pid GROUP BY x ORDER BY x").rows
    assert database.execute("SHOW TABLES").rows == [("p",), ("q",)]
    assert database.execute("DESCRIBE p").rows[0][:2] == ("id", b"integer")


def test_groups_are_in_the_order_of_their_keys(mysql: Callable[..., MySql]) -> None:
    database = mysql(("b", "1", 1), ("a", "1", 2), ("c", "1", 3), ("c", "1", 4))
    query = "SELECT name FROM t GROUP BY name ORDER BY count(*) DESC LIMIT 2"
    assert database.execute(query).rows == [("c",), ("a",)]
    query = "SELECT x FROM (SELECT name AS x, count(*) AS many FROM t GROUP BY x) AS s ORDER BY many DESC LIMIT 1"
    assert database.execute(query).rows == [("c",)]


def test_names_and_strings_stay_what_they_are() -> None:
    query = "SELECT `a``b`, 'x''y' FROM 1a_b WHERE \"q\" = `c`"
    assert read(query).sql == "SELECT \"a`b\", 'x''y' FROM \"1a_b\" WHERE 'q' = \"c\""


def test_a_database_that_is_let_go_frees_its_memory_at_once(image: bytes) -> None:
    def alive() -> int:
        return sum(issubclass(type(each), sqlite3.Connection) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = alive()
        MySql(image).execute("SELECT count(*) FROM t")
        assert alive() == before
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "expression",
    [
        "TRUNCATE(1, 999999999999)",
        "ROUND(1e300, 1000000)",
        "LPAD('a', 1000000000, 'b')",
        f"'{'a' * 3000}' REGEXP '(a+)+$'",
        f"'{'a' * 3000}' REGEXP 'a*a*a*a*b'",
        "FORMAT(1e308, 1000000)",
        "CHAR(1e999)",
        "FROM_UNIXTIME(1e308)",
    ],
)
def test_functions_with_absurd_arguments_end_at_once(mysql: Callable[..., MySql], expression: str) -> None:
    start = time.process_time()
    with contextlib.suppress(SqlError):
        mysql().execute(f"SELECT {expression}")
    assert time.process_time() - start < 10
