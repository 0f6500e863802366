"""Emulation of MySQL: SQLite with a translation of most of MySQL's dialect."""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from rollenv.envs.tools.sql.database import LIMITS, STEPS, Database, Result, SqlError, quoted
from rollenv.plugins.suites.mysql_functions import prepare

_TABLES = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%' ORDER BY 1"


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

    def execute(self, query: str, values: Sequence[Any] = ()) -> Result:
        first = re.match(r"\W*(\w+)", query[:1000])
        word = first[1].lower() if first else ""
        if word in ("show", "describe", "desc", "explain") and len(query) < 1000:
            found = tokens(query)
            words = [token.text.lower() for token in found]
            if word == "show" and words[1:2] == ["tables"]:
                return Result(("Tables",), super().execute(_TABLES).rows)
            if word == "show" and words[1:3] == ["create", "table"] and len(found) > 3:
                rows = super().execute("SELECT name, sql FROM sqlite_schema WHERE lower(name) = ?", [words[3]]).rows
                return Result(("Table", "Create Table"), rows)
            names = [found[at + 1] for at, token in enumerate(found[:-1]) if token.word in ("from", "in")]
            if word == "show" and words[1:2] in (["columns"], ["fields"]) and names:
                return self._columns(found, found.index(names[0]))
            if word != "show" and len(found) > 1 and found[1].kind in ("name", "word") and found[1].word != "select":
                return self._columns(found, 1)
            raise SqlError(
                "of the statements that show something there are SHOW TABLES, SHOW COLUMNS FROM and DESCRIBE"
            )
        if len(query) > LIMITS[sqlite3.SQLITE_LIMIT_SQL_LENGTH]:
            raise SqlError("the query is too long")
        return super().execute(translated(query, self.text_columns), values)

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


_TOKEN = re.compile(
    r"""(?P<space>\s+|--(?=\s|$)[^\n]*|\#[^\n]*|/\*.*?\*/)
      | (?P<string>[_nN]?'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<name>`(?:[^`]|``)*`)
      | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w$]))
      | (?P<word>[\w$@]+)
      | (?P<sign><=>|<>|!=|<=|>=|:=|&&|\|\||<<|>>|.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\x00", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_SIGNS = {"&&": "AND", "||": "OR", "<=>": "IS"}
_COMPARES = {"=", "<", ">", "<=", ">=", "<>", "!=", "<=>"}
#: Functions whose names have another meaning in SQLite.
_RENAMED = {"left", "right", "insert", "length", "char", "round", "format", "sum", "avg", "date", "time"}
_CASTS = {
    **dict.fromkeys(("signed", "unsigned", "int", "integer"), "INTEGER"),
    **dict.fromkeys(("decimal", "double", "float", "real", "numeric"), "REAL"),
    **dict.fromkeys(("char", "nchar", "varchar", "text", "datetime", "date", "time", "year"), "TEXT"),
    "binary": "BLOB",
}


class Token(NamedTuple):
    """A token of SQL."""

    kind: str
    """``string``, ``name`` (quoted), ``number``, ``word`` or ``sign``."""
    text: str
    """The token without quotes and escapes."""

    @property
    def word(self) -> str:
        """The text of a word in lower case; empty for other tokens."""
        return self.text.lower() if self.kind == "word" else ""


def tokens(query: str) -> list[Token]:
    """Return the tokens of a query, without spaces and comments."""
    found: list[Token] = []
    for match in _TOKEN.finditer(query):
        kind, text = str(match.lastgroup), match[0]
        if kind == "string":
            quote = text[-1]
            plain = text[text.index(text[-1]) + 1 : -1].replace(quote * 2, quote)
            text = re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), plain, flags=re.DOTALL)
            if found and found[-1].kind == "string":  # adjacent strings are concatenated
                text = found.pop().text + text
        elif kind == "name":
            text = text[1:-1].replace("``", "`")
        if kind != "space":
            found.append(Token(kind, text))
    while found and found[-1] == Token("sign", ";"):
        found.pop()
    return found


@functools.lru_cache(maxsize=512)
def translated(query: str, text_columns: frozenset[str] = frozenset()) -> str:
    """Translate a MySQL statement to SQLite, as far as possible.

    Args:
        text_columns: lower-case names of text columns, which MySQL compares with numbers as numbers.
    """
    found = _single(_with_groups(tokens(query)))
    out: list[str] = []
    setting = False
    at = 0
    while at < len(found):
        token = found[at]
        setting = token.word == "set" or (setting and token.word != "where")
        if (length := _dropped(found, at)) > 0:
            at += length
        elif token.word == "as" and (cast := _cast(found, at)):
            out.append(f"AS {cast[0]}")
            at = cast[1]
        else:
            numeric = not setting and _compared_with_number(found, at, text_columns)
            out.append(f"({_written(found, at)} + 0)" if numeric else _written(found, at))
            at += 1
    # Join with spaces, except around a point, and between a function and its parenthesis.
    text = ""
    for piece in out:
        close = piece in (".", "(") or text.endswith(".") or not text
        text += piece if close else f" {piece}"
    return text


_COMPOUND = ("union", "intersect", "except")


def _with_groups(found: list[Token]) -> list[Token]:
    """Order groups by their keys unless an ORDER BY does: SQLite would use the direction of ORDER BY for the keys."""
    for at in [index for index, token in enumerate(found) if token.word == "select"][::-1]:
        clauses, end = _clauses(found, at)
        compound = any(token.word in _COMPOUND for token in (*found[max(0, at - 2) : at], *found[end : end + 1]))
        if "group" in clauses and "order" in clauses and not compound:
            start, limit = clauses["group"] + 2, clauses.get("limit", end)
            stop = min(index for index in [*clauses.values(), end] if index > clauses["group"])
            found = [*found[:limit], Token("sign", ","), *found[start:stop], *found[limit:]]
    return found


def _clauses(found: Sequence[Token], at: int) -> tuple[dict[str, int], int]:
    """Return the positions of the later clauses of a SELECT, and its end."""
    clauses: dict[str, int] = {}
    depth = 0
    for index in range(at, len(found)):
        token = found[index]
        sign = token.text if token.kind == "sign" else ""
        depth += (sign == "(") - (sign == ")")
        if depth < 0 or (depth == 0 and token.word in _COMPOUND):
            return clauses, index
        if depth == 0 and token.word in ("group", "having", "order", "limit"):
            clauses.setdefault(token.word, index)
    return clauses, len(found)


def _single(found: list[Token]) -> list[Token]:
    """Make subqueries that are compared with a value fail if they have several rows."""
    out: list[Token] = []
    ends: list[bool] = []
    for at, token in enumerate(found):
        sign = token.text if token.kind == "sign" else ""
        if sign == "(":
            inner = at + 1 < len(found) and found[at + 1].word == "select"
            ends.append(inner and (_is_compare(found, at - 1) or _is_compare(found, closing(found, at) + 1)))
            out += _BEFORE_SINGLE if ends[-1] else [token]
        elif sign == ")" and ends and ends.pop():
            out += _AFTER_SINGLE
        else:
            out.append(token)
    return out


def _is_compare(found: list[Token], at: int) -> bool:
    return 0 <= at < len(found) and found[at].kind == "sign" and found[at].text in _COMPARES


_BEFORE_SINGLE = tokens("(WITH mysql_rows(one) AS (")
_AFTER_SINGLE = tokens(") SELECT mysql_single(one) FROM mysql_rows)")


def _dropped(found: list[Token], at: int) -> int:
    """Return the number of tokens to drop, because SQLite has no equivalent."""
    word, after = found[at].word, found[at + 1].word if at + 1 < len(found) else ""
    if word == "from" and after == "dual":
        return 2
    if word == "ignore" and at and found[at - 1].word == "insert":
        return 0
    if word == "collate" and after.startswith("utf8"):
        return 2
    return int(word in ("sql_calc_found_rows", "straight_join", "binary") and after != "")


def _cast(found: list[Token], at: int) -> tuple[str, int] | None:
    """Parse ``AS SIGNED)`` of a cast; return SQLite's type, and the end."""
    kind = _CASTS.get(found[at + 1].word) if at + 1 < len(found) else None
    if kind is None:
        return None
    end = at + 2
    if end < len(found) and found[end].text == "(":
        while end < len(found) and found[end].text != ")":
            end += 1
        end += 1
    if end < len(found) and found[end].word in ("integer", "int"):
        end += 1
    return (kind, end) if end < len(found) and found[end].text == ")" else None


def _written(found: list[Token], at: int) -> str:
    token = found[at]
    following = found[at + 1] if at + 1 < len(found) else Token("", "")
    if token.kind == "string":
        return "'" + token.text.replace("'", "''") + "'"
    if token.kind == "name" or (token.kind == "word" and token.text[0].isdigit()):
        return '"' + token.text.replace('"', '""') + '"'
    if token.kind == "sign":
        return _SIGNS.get(token.text, token.text)
    if token.word in _RENAMED and following.text == "(" and following.kind == "sign":
        return f"mysql_{token.word}"
    if token.word == "ignore" and at and found[at - 1].word == "insert":
        return "OR IGNORE"
    return {"separator": ",", "div": "/", "regexp": "REGEXP", "rlike": "REGEXP"}.get(token.word, token.text)


def _compared_with_number(found: list[Token], at: int, text_columns: frozenset[str]) -> bool:
    """Return whether this is a text column that is compared with a number."""
    token = found[at]
    if token.kind not in ("name", "word") or token.text.lower() not in text_columns:
        return False
    if at and found[at - 1].text == ".":
        return False  # a qualified name would have to be converted as a whole
    after = found[at + 1 : at + 4]
    if after and after[0].text in _COMPARES and after[0].kind == "sign":
        sign = len(after) > 2 and after[1].text in ("-", "+")
        return len(after) > 1 and after[1 + sign].kind == "number"
    if after and after[0].word == "between":
        return len(after) > 1 and after[1].kind == "number"
    before = found[max(0, at - 2) : at]
    return len(before) == 2 and before[1].text in _COMPARES and before[0].kind == "number"


def closing(found: Sequence[Token], at: int) -> int:
    """Return the index of the parenthesis that closes the one at an index."""
    depth = 0
    for index in range(at, len(found)):
        if found[index].kind == "sign":
            depth += (found[index].text == "(") - (found[index].text == ")")
        if depth == 0:
            return index
    return len(found) - 1
