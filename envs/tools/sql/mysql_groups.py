"""Groups as MySQL makes them: in the order of their keys where nothing else orders them; by columns from outside."""

from __future__ import annotations

from collections.abc import Sequence

from rollenv.envs.tools.sql.mysql_strict import Block, Tables
from rollenv.envs.tools.sql.mysql_text import Token, split_at_commas

_COMPOUND = ("union", "intersect", "except")
_PARTS = ("group", "having", "order", "limit")


def with_groups(found: Sequence[Token], tables: Tables) -> list[Token]:
    """A query in which groups are as in MySQL.

    Args:
        tables: by name, all in lower case.
    """
    out = list(found)
    for at in [place for place, token in enumerate(found) if token.word == "select"][::-1]:
        out = _one(out, at, tables)
    return out


def _one(found: list[Token], at: int, tables: Tables) -> list[Token]:
    places, end = _places(found, at)
    if "group" not in places:
        return found
    start, stop = places["group"] + 2, min(place for place in [*places.values(), end] if place > places["group"])
    terms = found[start:stop]
    if at:
        terms = _inside(terms, Block.read(found[at:]), tables)
    closing = places.get("limit", end)
    tail = found[stop:closing]
    compound = any(token.word in _COMPOUND for token in (*found[max(0, at - 2) : at], *found[end : end + 1]))
    if "order" in places and not compound:
        # SQLite would give the groups' keys the direction of ORDER BY.
        tail = [*tail, Token("sign", ","), *terms]
    return [*found[:start], *terms, *tail, *found[closing:]]


def _places(found: Sequence[Token], at: int) -> tuple[dict[str, int], int]:
    """Return the positions of the later clauses of a SELECT, and its end."""
    places: dict[str, int] = {}
    depth = 0
    for place in range(at, len(found)):
        token = found[place]
        sign = token.text if token.kind == "sign" else ""
        depth += (sign == "(") - (sign == ")")
        if depth < 0 or (depth == 0 and token.word in _COMPOUND):
            return places, place
        if depth == 0 and token.word in _PARTS:
            places.setdefault(token.word, place)
    return places, len(found)


def _inside(terms: list[Token], block: Block, tables: Tables) -> list[Token]:
    """The terms; a column that none of the tables has comes from the query around, and is the same for all rows."""
    sources = block.sources()
    if sources is None or any(name not in tables for name in sources.values()):
        return terms
    items = split_at_commas(block.clauses.get("select", []))
    own = {item[-1].text.lower() for item in items if len(item) > 1}
    own.update(*(tables[name].columns for name in sources.values()))
    out: list[Token] = []
    for term in split_at_commas(terms):
        single = len(term) == 1 and term[0].kind in ("word", "name")
        out += [Token("sign", ",")] if out else []
        out += [Token("word", "NULL")] if single and term[0].text.lower() not in own else term
    return out
