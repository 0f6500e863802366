"""Stored answers to WorkBench, in the form in which they are published, and the verdict on them.

A stored call reads ``calendar.create_event.func(event_name="x")``. The original evaluates it as Python and passes over
what fails. Here it is parsed, and nothing but texts and numbers is computed.
"""

from __future__ import annotations

import ast
import csv
import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.core import UsageError
from rollenv.envs.tools.published import folder_of
from rollenv.envs.tools.workbench import CATEGORIES, NEED
from rollenv.envs.tools.workbench.functions import WorkBench
from rollenv.envs.tools.workbench.tables import same, start
from rollenv.tools.calls import ToolCall

#: The most characters of a stored call that are read.
_MOST_TEXT = 100_000


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
    for text in calls:
        call = parsed(text)
        if not call.problem:
            before = office.snapshot()
            try:
                getattr(office, call.name)(**call.arguments)
            except Exception:  # whatever stopped the original's call stops this one, and the next call is made
                office.restore(before)
    return office.state


def parsed(text: str) -> ToolCall:
    """A stored call, with the name and the arguments that an environment's call has.

    Args:
        text: such as ``email.delete_email.func(email_id="00000393")``.
    """
    try:
        source = text[:_MOST_TEXT].lstrip(" \t")
        call = ast.parse(source, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("it is not a call")
        path = ast.unparse(call.func).split(".")
        name = "_".join(path[:2])
        if len(path) != 3 or path[2] != "func" or name not in WorkBench.functions():
            raise ValueError("there is no such function")
        given = [keyword.arg for keyword in call.keywords]
        if None in given or len(set(given)) < len(given):
            raise ValueError("arguments are given by name, each once")
        named = {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
        bound = inspect.signature(getattr(WorkBench, name)).bind(None, *map(_value, call.args), **named)
        return ToolCall(name, {k: v for k, v in bound.arguments.items() if k != "self"}, len(text))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        return ToolCall("", {}, len(text), f"{text[:80]!r} cannot be carried out: {str(error)[:200]}")


def _value(node: ast.expr) -> Any:
    """What an argument is: quotation marks within a stored text can make it texts that are joined or chosen from."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _value(node.left), _value(node.right)
        return left + right
    if isinstance(node, ast.BoolOp):
        for each in node.values:
            value = _value(each)
            if bool(value) is isinstance(node.op, ast.Or):
                break
        return value
    return ast.literal_eval(node)
