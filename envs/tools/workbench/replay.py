"""Stored answers to WorkBench, in the form in which they are published, and the verdict on them.

A stored call reads ``calendar.create_event.func(event_name="x")``. The original evaluates it as Python and passes over
what fails. Here it is parsed, and of Python there is what such texts can be taken for: calls of the functions, texts,
numbers, and what joins, compares or chooses from them.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import csv
import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.core import UsageError
from rollenv.envs.tools.published import folder_of
from rollenv.envs.tools.workbench import CATEGORIES, NEED
from rollenv.envs.tools.workbench.functions import WorkBench
from rollenv.envs.tools.workbench.tables import same, start
from rollenv.tools.calls import SOURCE, ToolCall

#: The most characters of a stored call that are read.
_MOST_TEXT = 100_000
_DOMAINS = frozenset(("company_directory", *CATEGORIES.values()))


@dataclass(frozen=True)
class Query:
    """A task as it is published."""

    text: str
    category: str
    toolkits: tuple[str, ...]
    """What is needed for it, of calendar, email, analytics, project_management and customer_relationship_manager."""
    answer: tuple[str, ...]
    """Calls in the form of stored ones."""


@dataclass(frozen=True)
class Verdict:
    """On an answer."""

    correct: bool
    side_effects: bool
    """Whether it has changed something and is not right (leaving aside whether it ended with an error)."""


@functools.lru_cache(maxsize=2)
def _read(folder: Path) -> tuple[Query, ...]:
    found = []
    for category, stem in CATEGORIES.items():
        path = folder / "processed" / "queries_and_answers" / f"{stem}_queries_and_answers.csv"
        with open(path, newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                toolkits = tuple(CATEGORIES.get(name, name) for name in ast.literal_eval(row["domains"]))
                found.append(Query(row["query"], category, toolkits, tuple(ast.literal_eval(row["answer"]))))
    return tuple(found)


def queries(category: str = "") -> tuple[Query, ...]:
    """The tasks of a category, or all of them.

    Raises:
        MissingData: the files are not there.
        UsageError: there is no such category.
    """
    if category and category not in CATEGORIES:
        raise UsageError(f"WorkBench has no category {category!r}; choose from {', '.join(CATEGORIES)}")
    return tuple(each for each in _read(folder_of(NEED)) if category in ("", each.category))


def verdict(query: str, function_calls: Sequence[str] | str, error: str = "") -> Verdict:
    """Judge a stored answer as the original does: by the tables that its calls leave.

    Args:
        query: the text of a query.
        function_calls: the calls made, as a list or as a list's text.
        error: with which the agent stopped, if it did.

    Raises:
        UsageError: there is no such query, or the calls are not a list of texts.
    """
    known = next((each for each in _read(folder_of(NEED)) if each.text == query), None)
    if known is None:
        raise UsageError(f"WorkBench has no query {query[:200]!r}")
    if isinstance(function_calls, str):
        try:
            function_calls = ast.literal_eval(function_calls)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as problem:
            raise UsageError(f"function_calls is not a list of texts: {str(problem)[:200]}") from problem
    if not isinstance(function_calls, list | tuple) or not all(isinstance(call, str) for call in function_calls):
        raise UsageError(f"function_calls is a list of texts, not {str(function_calls)[:200]!r}")
    return judged(replay(function_calls), replay(known.answer), error)


def judged(state: Mapping[str, Any], wanted: Mapping[str, Any], error: str = "") -> Verdict:
    """Compare the state that an answer has left with the one that is wanted.

    Args:
        state: of a :class:`WorkBench`.
        wanted: as well.
        error: with which the agent stopped, if it did.
    """
    right = same(state, wanted)
    changed = not same(state, start(), fold=False)
    return Verdict(right and not error, changed and not right)


def replay(calls: Sequence[str]) -> dict[str, Any]:
    """The state that stored calls leave; those that fail are passed over.

    Args:
        calls: as they are stored.
    """
    office = WorkBench()

    def call(name: str, positional: list[Any], named: dict[str, Any]) -> Any:
        before = office.snapshot()
        try:
            return getattr(office, name)(*positional, **named)
        except Exception:
            office.restore(before)
            raise

    for text in calls:
        with contextlib.suppress(Exception):  # whatever stopped the original stops this one, and the next is made
            _value(_tree(text), call)
    return office.state


def parsed(text: str) -> ToolCall:
    """A stored call, with the name and the arguments that an environment's call has.

    Args:
        text: such as ``email.delete_email.func(email_id="00000393")``.
    """
    made: list[ToolCall] = []

    def call(name: str, positional: list[Any], named: dict[str, Any]) -> None:
        bound = inspect.signature(getattr(WorkBench, name)).bind(None, *positional, **named)
        made.append(ToolCall(name, {k: v for k, v in bound.arguments.items() if k != "self"}, len(text)))

    try:
        tree = _tree(text)
        if not isinstance(tree, ast.Call):
            raise ValueError("it is not a call")
        _value(tree, call)
        return made[-1]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        return ToolCall("", {}, len(text), f"{text[:80]!r} cannot be carried out: {str(error)[:200]}")


#: Carries out a function: its name, positional arguments, named ones.
_Caller = Callable[[str, list[Any], dict[str, Any]], Any]
_JOINED: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {ast.Add: operator.add, ast.Sub: operator.sub}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.eq,  # of texts in one source
    ast.IsNot: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}


def _tree(text: str) -> ast.expr:
    """The expression that a stored text is; SyntaxError where Python would not begin to evaluate it."""
    tree = ast.parse(text[:_MOST_TEXT].lstrip(" \t"), SOURCE, mode="eval").body
    for node in ast.walk(tree):
        names = [keyword.arg for keyword in node.keywords if keyword.arg] if isinstance(node, ast.Call) else []
        if len(set(names)) < len(names) or isinstance(node, ast.Await | ast.Yield | ast.YieldFrom):
            raise SyntaxError("arguments are named twice, or it is no expression")
    return tree


def _value(node: ast.expr, call: _Caller) -> Any:
    """Return the value of an expression: quotation marks within a stored text can make it any expression."""
    match node:
        case ast.Call():
            return _called(node, call)
        case ast.BinOp(left, op, right):
            return _JOINED[type(op)](_value(left, call), _value(right, call))
        case ast.BoolOp(op, values):
            for each in values:
                value = _value(each, call)
                if bool(value) is isinstance(op, ast.Or):
                    break
            return value
        case ast.IfExp(test, body, orelse):
            return _value(body if _value(test, call) else orelse, call)
        case ast.Compare(left, [op], [right]):
            return _COMPARED[type(op)](_value(left, call), _value(right, call))
        case ast.UnaryOp(op, operand):
            value = _value(operand, call)
            return not value if isinstance(op, ast.Not) else -value
        case ast.List(elts) | ast.Tuple(elts):
            return [_value(each, call) for each in elts]
        case ast.JoinedStr(values):
            return "".join(str(_value(each, call)) for each in values)
        case ast.FormattedValue(value, -1, None):
            return _value(value, call)
        case ast.Name(name) if name in _DOMAINS or hasattr(builtins, name):
            return object()  # a module or a function of Python's: neither text nor number
        case ast.Attribute(of) | ast.Subscript(of):
            _value(of, call)  # has been carried out when the rest fails
    return ast.literal_eval(node)


def _called(node: ast.Call, call: _Caller) -> Any:
    """Return the result of a call; its arguments come first, as in Python."""
    domain, _, rest = ast.unparse(node.func).partition(".")
    name = f"{domain}_{rest.removesuffix('.func')}"
    if domain not in _DOMAINS or not rest.endswith(".func") or "." in rest[:-5] or name not in WorkBench.functions():
        raise ValueError("there is no such function")
    positional: list[Any] = []
    for each in node.args:
        if isinstance(each, ast.Starred):
            positional += _value(each.value, call)
        else:
            positional.append(_value(each, call))
    named: dict[str, Any] = {}
    for keyword in node.keywords:
        value = _value(keyword.value, call)
        more = {keyword.arg: value} if keyword.arg else dict(value)
        if not named.keys().isdisjoint(more):
            raise TypeError("an argument is given twice")
        named |= more
    return call(name, positional, named)
