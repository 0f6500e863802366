"""Stored answers to WorkBench, in the form in which they are published, and the verdict on them.

A stored call reads ``calendar.create_event.func(event_name="x")``. The original evaluates it as Python and passes over
what fails. Here it is parsed: a call of a function with literals, as all published ones are; the rest is passed over.
"""

from __future__ import annotations

import ast
import csv
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.core import UsageError
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
    return tuple(each for each in _read(NEED.found()) if category in ("", each.category))


def verdict(query: str, function_calls: Sequence[str] | str, error: str = "") -> Verdict:
    """Judge a stored answer as the original does: by the tables that its calls leave.

    Args:
        function_calls: the calls made, as a list or as a list's text.
        error: with which the agent stopped, if it did.

    Raises:
        UsageError: there is no such query, or the calls are not a list of texts.
    """
    known = next((each for each in _read(NEED.found()) if each.text == query), None)
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
    """Compare the state that an answer has left with the one that is wanted."""
    right = same(state, wanted)
    changed = not same(state, start(), fold=False)
    return Verdict(right and not error, changed and not right)


def replay(calls: Sequence[str]) -> dict[str, Any]:
    """The state that stored calls leave; those that fail are passed over."""
    office = WorkBench()
    for call in map(parsed, calls):
        before = office.snapshot()
        try:
            if not call.problem:
                getattr(office, call.name)(**call.arguments)
        except Exception:  # whatever stopped the original stops this one, and the next is made
            office.restore(before)
    return office.state


def parsed(text: str) -> ToolCall:
    """A stored call, with the name and the arguments that an environment's call has.

    Args:
        text: such as ``email.delete_email.func(email_id="00000393")``.
    """
    try:
        node = ast.parse(text[:_MOST_TEXT].lstrip(" \t"), SOURCE, mode="eval").body
        if not isinstance(node, ast.Call) or node.args:
            raise ValueError("it is not a call with named arguments")
        domain, _, rest = ast.unparse(node.func).partition(".")
        name = f"{domain}_{rest.removesuffix('.func')}"
        known = WorkBench.functions().get(name) if domain in _DOMAINS and rest.endswith(".func") else None
        arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
        if (
            known is None
            or not arguments.keys() <= known.model.model_fields.keys()
            or len(arguments) < len(node.keywords)
        ):
            raise ValueError("there is no such function, or not with these arguments")
        return ToolCall(name, arguments, len(text))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        return ToolCall("", {}, len(text), f"{text[:80]!r} cannot be carried out: {str(error)[:200]}")
