"""Refusals of MySQL that SQLite does not have: columns that a group does not determine, some forms of subqueries."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rollenv.envs.tools.sql.mysql_text import Token, closing, split_at_commas, tokens, top_level

_AGGREGATES = {"count", "sum", "avg", "min", "max", "group_concat", "std", "stddev", "variance", "any_value", "bit_and"}
_CLAUSES = ("select", "from", "where", "group", "having", "order", "limit")
_KEYWORDS = {
    *("select", "distinct", "all", "as", "and", "or", "not", "in", "is", "null", "like", "between", "exists", "case"),
    *("when", "then", "else", "end", "asc", "desc", "by", "on", "using", "join", "left", "right", "inner", "outer"),
    *("cross", "natural", "union", "intersect", "except", "interval", "true", "false", "div", "mod", "regexp", "rlike"),
    *("xor", "binary", "collate", "separator", "over", "partition", "rows", "any", "some", "cast", "convert"),
    *("signed", "unsigned", "decimal", "char", "datetime", "integer"),
    *_CLAUSES,
}
#: Words that MySQL keeps for itself and SQLite takes as names.
_RESERVED = {
    *("show", "rank", "groups", "system", "function", "lead", "lag", "ntile", "cube", "usage", "condition", "read"),
    *("write", "schema", "schemas", "change", "lines", "option", "range", "release", "require", "return", "signal"),
    *("sql", "starting", "terminated", "undo", "unlock", "varying", "zerofill", "keys", "loop", "mod", "of"),
}


class Table(NamedTuple):
    """The facts about a table."""

    columns: frozenset[str]
    key: frozenset[str]
    """The columns of its primary key; empty without one."""


Tables = Mapping[str, Table]
#: The name of a table in a query, and a column of it.
Column = tuple[str, str]


def complaint(query: str, tables: Tables) -> str:
    """Return MySQL's complaint about a SELECT; empty if nothing of what is checked here.

    Args:
        tables: by name, all in lower case.
    """
    if len(query) > 20_000:
        return ""
    found = tokens(query)
    if not found or found[0].word not in ("select", "with"):
        return ""
    return _reserved(found) or _subqueries(found) or next(filter(None, _blocks(found, tables)), "")


def _reserved(found: Sequence[Token]) -> str:
    for before, token in itertools.pairwise(found):
        if token.word in _RESERVED and before.word in ("from", "join"):
            return f"You have an error in your SQL syntax near {token.text!r}: it is a reserved word"
    return ""


def _subqueries(found: Sequence[Token]) -> str:
    """Derived tables without a name, and LIMIT in a subquery of IN."""
    for at, token in enumerate(found[:-1]):
        if token.text != "(" or token.kind != "sign" or found[at + 1].word != "select" or not at:
            continue
        end = closing(found, at)
        before, after = found[at - 1].word, found[end + 1] if end + 1 < len(found) else Token("", "")
        named = after.kind == "name" or (after.word and after.word not in _KEYWORDS) or after.word == "as"
        if before in ("from", "join") and not named:
            return "Every derived table must have its own alias"
        inside = top_level(found[at + 1 : end])
        if before in ("in", "all", "any", "some") and any(each.word == "limit" for each in inside):
            return "This version of MySQL doesn't yet support 'LIMIT & IN/ALL/ANY/SOME subquery'"
    return ""


def _blocks(found: Sequence[Token], tables: Tables) -> Iterator[str]:
    """A complaint for each SELECT, or nothing."""
    for at, token in enumerate(found):
        if token.word == "select":
            yield Block.read(found[at:]).complaint(tables)


@dataclass
class Block:
    """The clauses of one SELECT, without its subqueries."""

    clauses: dict[str, list[Token]] = field(default_factory=dict)

    @classmethod
    def read(cls, found: Sequence[Token]) -> Block:
        """The SELECT at the start of some tokens."""
        clauses: dict[str, list[Token]] = {}
        current, depth = "", 0
        for token in top_level(found):
            sign = token.text if token.kind == "sign" else ""
            depth += (sign == "(") - (sign == ")")
            if depth < 0 or (depth == 0 and token.word in ("union", "intersect", "except")):
                break
            if depth == 0 and token.word in _CLAUSES:
                current = token.word
            clauses.setdefault(current, []).append(token)
        return cls({name: each[1:] for name, each in clauses.items()})

    def complaint(self, tables: Tables) -> str:
        """Return MySQL's complaint."""
        grouped = "group" in self.clauses
        items = split_at_commas(self.clauses.get("select", []))
        if not grouped and not any(_aggregates(item) for item in items):
            return ""
        sources = self.sources()
        if sources is None or any(name not in tables for name in sources.values()):
            return ""
        known = {alias: tables[name] for alias, name in sources.items()}
        groups = split_at_commas(self.clauses.get("group", [])[1:])  # without BY
        determined = self._determined(groups, items, known)
        aliases = {item[-1].text.lower() for item in items if len(item) > 1}
        for number, item in enumerate([*items, *split_at_commas(self.clauses.get("order", [])[1:])], 1):
            if item in groups:
                continue
            for column in _columns(item, known):
                free = column[1] in aliases and number > len(items)
                if column not in determined and not free:
                    where = f"Expression #{number} contains nonaggregated column '{'.'.join(column)}'"
                    return f"{where}, which the GROUP BY clause does not determine"
        return ""

    def sources(self) -> dict[str, str] | None:
        """Names of tables by their names in this block; None if one is a subquery."""
        sources: dict[str, str] = {}
        found = self.clauses.get("from", [])
        for at, token in enumerate(found):
            if at and found[at - 1].word != "join" and found[at - 1].text != ",":
                continue
            if token.kind not in ("word", "name"):
                return None
            after = [each for each in found[at + 1 : at + 3] if each.word != "as"]
            named = after and (after[0].kind == "name" or (after[0].word and after[0].word not in _KEYWORDS))
            sources[after[0].text.lower() if named else token.text.lower()] = token.text.lower()
        return sources or None

    def _determined(
        self, groups: list[list[Token]], items: list[list[Token]], known: Mapping[str, Table]
    ) -> set[Column]:
        """The columns that have one value in each group."""
        renamed = {item[-1].text.lower(): item[:-1] for item in items if len(item) > 1}
        found: set[Column] = set()
        for group in groups:
            own = list(_columns(group, known))
            alias = [] if own or len(group) > 1 else renamed.get(group[0].text.lower(), [])
            found.update(own or _columns(alias, known))
        equal = self._equalities(known)
        while True:
            size = len(found)
            for left, right in equal:
                if left is None or left in found:
                    found.add(right)
            for name, table in known.items():
                if table.key and all((name, column) in found for column in table.key):
                    found.update((name, column) for column in table.columns)
            if len(found) == size:
                return found

    def _equalities(self, known: Mapping[str, Table]) -> list[tuple[Column | None, Column]]:
        """Pairs of columns that are equal; None stands for a constant."""
        pairs: list[tuple[Column | None, Column]] = []
        for name in ("from", "where"):
            clause = self.clauses.get(name, [])
            if any(token.word == "or" for token in clause):
                continue
            for at, token in enumerate(clause):
                if token.text != "=" or token.kind != "sign":
                    continue
                left = list(_columns(clause[max(0, at - 3) : at], known))[-1:]
                after = clause[at + 1 : at + 4]
                right = list(_columns(after[: 3 if len(after) > 1 and after[1].text == "." else 1], known))[:1]
                constant = bool(after) and after[0].kind in ("string", "number")
                if left and right:
                    pairs += [(left[0], right[0]), (right[0], left[0])]
                elif left and constant:
                    pairs.append((None, left[0]))
        return pairs


def _aggregates(item: Sequence[Token]) -> bool:
    if any(token.word == "over" for token in item):
        return False
    return any(token.word in _AGGREGATES and after.text == "(" for token, after in itertools.pairwise(item))


def _columns(item: Sequence[Token], known: Mapping[str, Table]) -> Iterator[Column]:
    """The columns named outside of aggregates."""
    at = 0
    while at < len(item):
        token = item[at]
        following = item[at + 1].text if at + 1 < len(item) else ""
        if token.word in _AGGREGATES and following == "(":
            at = closing(item, at + 1)
        elif following == "." and at + 2 < len(item):
            yield from _resolved(token.text.lower(), item[at + 2].text.lower(), known)
            at += 2
        elif token.kind == "name" or (token.word and following != "(" and token.word not in _KEYWORDS):
            if not (at and item[at - 1].word == "as"):
                yield from _resolved("", token.text.lower(), known)
        elif token.text == "*" and len(item) == 1:
            yield from ((alias, column) for alias, table in known.items() for column in sorted(table.columns))
        at += 1


def _resolved(qualifier: str, column: str, known: Mapping[str, Table]) -> Iterator[Column]:
    if column == "*":
        yield from ((qualifier, each) for each in sorted(known[qualifier].columns if qualifier in known else ()))
    for alias, table in known.items():
        if column in table.columns and qualifier in ("", alias):
            yield alias, column
            return


@functools.lru_cache(maxsize=4096)
def cached_complaint(query: str, tables: tuple[tuple[str, Table], ...]) -> str:
    """:func:`complaint`, remembered.

    Args:
        tables: names and tables, in order.
    """
    return complaint(query, dict(tables))
