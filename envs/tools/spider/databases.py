"""The databases of a MySQL dump, in SQLite."""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.envs.tools.sql.data import quoted
from rollenv.envs.tools.sql.mysql_functions import PAD, prepare

_COLUMN = re.compile(r"^  `(?P<name>[^`]+)` (?P<kind>\w+(?:\([^)]*\))?)(?P<rest>.*?),?$", re.MULTILINE)
_PRIMARY = re.compile(r"^  PRIMARY KEY \((?P<names>.*)\),?$", re.MULTILINE)
_STATEMENT = re.compile(r"(?:[^;'`]|'(?:[^'\\]|\\.|'')*'|`[^`]*`)+", re.DOTALL)
_VALUE = re.compile(r"'((?:[^'\\]|\\.|'')*)'|(NULL)|(-?[\d.]+(?:[eE][+-]?\d+)?)|([(),])|_binary ", re.DOTALL)
_TEXT = re.compile(r"(?:tiny|medium|long)?text|(?:var)?char|enum|set", re.IGNORECASE)


@dataclass(frozen=True)
class Stored:
    """A database of the dump, shared by all who play with it."""

    image: bytes
    text_columns: frozenset[str]
    """Names, in lower case, that only columns of text have."""
    floats: frozenset[str]
    """Names, in lower case, of columns of which MySQL's sums are floating point numbers."""
    empty: frozenset[str]
    """The tables without rows, in lower case."""


@functools.lru_cache(maxsize=4)
def databases(path: Path) -> Mapping[str, Stored]:
    """The databases of a dump by name, read once."""
    parts: dict[str, list[str]] = {}
    name = ""
    dump = re.sub(r"^(?:--.*|/\*.*?\*/;)$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for match in _STATEMENT.finditer(dump):
        statement = match[0].strip()
        if used := re.match(r"USE `([^`]+)`", statement):
            name = used[1]
        elif statement.startswith(("CREATE TABLE", "INSERT INTO")):
            parts.setdefault(name, []).append(statement)
    return {name: _stored(statements) for name, statements in parts.items()}


def _stored(statements: list[str]) -> Stored:
    kinds: dict[str, dict[str, str]] = {}
    full: set[str] = set()
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        prepare(connection, lambda steps: None)
        connection.execute("BEGIN")
        for statement in statements:
            table = statement.split("`")[1].lower()  # as the MySQL of the dump shows them
            if statement.startswith("CREATE"):
                kinds[table] = {match["name"].lower(): match["kind"].lower() for match in _COLUMN.finditer(statement)}
                connection.execute(_definition(table, statement))
            else:
                full.add(table)
                rows = _rows(statement, list(kinds[table].values()))
                marks = ", ".join("?" * len(kinds[table]))
                connection.executemany(f"INSERT INTO {quoted(table)} VALUES ({marks})", rows)
        connection.execute("COMMIT")
        image = connection.serialize()
    found = [(name, kind) for columns in kinds.values() for name, kind in columns.items()]
    other = {name for name, kind in found if not _TEXT.match(kind)}
    floats = {name for name, kind in found if _TEXT.match(kind) or re.match("double|float", kind)}
    return Stored(image, frozenset(name for name, _ in found) - other, frozenset(floats), frozenset(kinds) - full)


def _definition(table: str, statement: str) -> str:
    """With MySQL's types, collation and key; other indexes and constraints are for speed and for writers only."""
    primary = _PRIMARY.search(statement)
    columns = [
        f"{quoted(match['name'])} {match['kind']}"
        + (f" COLLATE {PAD}" if _TEXT.match(match["kind"]) else "")
        + (" NOT NULL" if "NOT NULL" in match["rest"] else "")
        for match in _COLUMN.finditer(statement)
    ]
    if primary:
        names = re.findall(r"`([^`]+)`", primary["names"])
        columns.append(f"PRIMARY KEY ({', '.join(map(quoted, names))})")
    return f"CREATE TABLE {quoted(table)} ({', '.join(columns)})"


def _rows(statement: str, kinds: list[str]) -> Iterator[list[Any]]:
    row: list[Any] = []
    for match in _VALUE.finditer(statement, statement.index(" VALUES ") + 8):
        text, null, number, sign = match.groups()
        if sign == "(":
            row = []
        elif sign == ")":
            yield row
        elif null:
            row.append(None)
        elif number is not None:
            row.append(float(number) if re.match("double|float|decimal", kinds[len(row)]) else int(number))
        elif text is not None:
            row.append(re.sub(r"\\(.)", lambda m: {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}.get(m[1], m[1]), text))
