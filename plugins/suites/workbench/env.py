"""WorkBench as an environment, and its judgement of stored answers by a replay of their calls."""

from __future__ import annotations

import ast
import csv
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.core import syntax
from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import Change, differences
from rollenv.core.tools.call_readers import SOURCE, ToolCall
from rollenv.envs.tools.base import Judgement, Problem, ToolEnv
from rollenv.plugins.suites.workbench import CATEGORIES, NEED
from rollenv.plugins.suites.workbench.functions import WorkBench
from rollenv.plugins.suites.workbench.tables import TODAY, same, start

#: Maximum length of a stored call.
_MOST_TEXT = 100_000
_DOMAINS = frozenset(("company_directory", *CATEGORIES.values()))


@dataclass(frozen=True)
class Query:
    """A published task."""

    text: str
    category: str
    toolkits: tuple[str, ...]
    """Toolkits: calendar, email, analytics, project_management, customer_relationship_manager."""
    answer: tuple[str, ...]
    """Right calls, in the format of stored ones."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on an answer."""

    correct: bool
    side_effects: bool
    """True if the final state is neither the initial nor the wanted one (regardless of errors)."""


@functools.lru_cache(maxsize=2)
def _read(folder: Path) -> tuple[Query, ...]:
    found = []
    for category, stem in CATEGORIES.items():
        path = folder / "processed" / "queries_and_answers" / f"{stem}_queries_and_answers.csv"
        with open(path, newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                toolkits = tuple(CATEGORIES.get(name, name) for name in syntax.literal_eval(row["domains"]))
                found.append(Query(row["query"], category, toolkits, tuple(syntax.literal_eval(row["answer"]))))
    return tuple(found)


def queries(category: str = "") -> tuple[Query, ...]:
    """Return the tasks of a category, or all."""
    if category and category not in CATEGORIES:
        raise UsageError(f"WorkBench has no category {category!r}; choose from {', '.join(CATEGORIES)}")
    return tuple(each for each in _read(NEED.found()) if category in ("", each.category))


def verdict(query: str, function_calls: Sequence[str] | str, error: str = "") -> Verdict:
    """Judge a stored answer by its final tables, as the original does.

    Args:
        function_calls: the calls, as a list or the text of a list.
    """
    known = next((each for each in _read(NEED.found()) if each.text == query), None)
    if known is None:
        raise UsageError(f"WorkBench has no query {query[:200]!r}")
    if isinstance(function_calls, str):
        try:
            function_calls = syntax.literal_eval(function_calls)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as problem:
            raise UsageError(f"function_calls is not a list of texts: {str(problem)[:200]}") from problem
    if not isinstance(function_calls, list | tuple) or not all(isinstance(call, str) for call in function_calls):
        raise UsageError(f"function_calls is a list of texts, not {str(function_calls)[:200]!r}")
    return judged(replay(function_calls), replay(known.answer), error)


def judged(state: Mapping[str, Any], wanted: Mapping[str, Any], error: str = "") -> Verdict:
    """Compare the final state of an answer with the wanted one."""
    right = same(state, wanted)
    changed = not same(state, start(), fold=False)
    return Verdict(right and not error, changed and not right)


def replay(calls: Sequence[str]) -> dict[str, Any]:
    """Return the state after stored calls; failed ones are skipped."""
    office = WorkBench()
    for call in map(parsed, calls):
        before = office.snapshot()
        try:
            if not call.problem:
                getattr(office, call.name)(**call.arguments)
        except Exception:  # as in the original, the next call follows
            office.restore(before)
    return office.state


def parsed(text: str) -> ToolCall:
    """Parse a stored call to the format of an environment's call.

    Args:
        text: a call such as ``email.delete_email.func(email_id="00000393")``.
    """
    try:
        node = syntax.parse(text[:_MOST_TEXT].lstrip(" \t"), SOURCE, mode="eval").body
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


_POLICY = (
    f"You work in an office through its functions. Today is Thursday, {TODAY}, and it is 00:00:00; dates in requests "
    "are meant from there. No meeting may begin before 9:00 or end after 18:00. Nobody answers questions: do what is "
    "asked, and only that, then write a message without a call."
)
_EVERYWHERE = "company_directory"


class WorkBenchEnv(ToolEnv):
    """WorkBench (arXiv 2405.00823): 690 requests in an office; the tables at the end decide.

    The 27 functions search and change calendar, mail, web analytics, project board and customers. An episode is solved
    if the final tables are those of the published calls, ignoring case except in names of lists, boards and statuses.
    ``metrics`` has ``side_effects`` 1 for an unsolved episode with changes. An agent that does nothing solves 124 of
    the 690 (18 %), whose condition for a change does not hold.

    Two differences from the original's agent loop do not affect verdicts: searches take texts literally, not as
    regular expressions, and ``domains`` includes the customer functions whenever a request needs them (the original
    omits them from requests over several domains).

    Args:
        category: analytics, calendar, crm, email, multi_domain or project_management; all if empty.
        toolkits: ``all`` functions, or those of the ``domains`` of the request.
    """

    def __init__(self, *, category: str = "", toolkits: str = "all", **settings: Any):
        super().__init__(**settings)
        if toolkits not in ("all", "domains"):
            raise UsageError(f"toolkits is 'all' or 'domains', not {toolkits!r}")
        self.toolkits = toolkits
        self.queries = queries(category)
        self.tasks = len(self.queries)

    def problem(self, key: int) -> Problem:
        query = self.queries[key]
        offered = None
        if self.toolkits == "domains":
            offered = [name for name in WorkBench.functions() if name.startswith((_EVERYWHERE, *query.toolkits))]
        return Problem(
            query.text,
            WorkBench(),
            plan=[plan]
            if (plan := [(call.name, call.arguments) for call in map(parsed, query.answer) if not call.problem])
            else [],
            name=f"{query.category}/{key}",
            goal=_goal(query.answer),
            policy=_POLICY,
            tools=offered,
            category=query.category,
            before=_start(),
        )

    def judge(self, problem: Problem) -> Judgement:
        state = problem.backend.data()
        judgement = judged(state, problem.wanted)
        wanted = differences(problem.start, problem.wanted)
        done = {change.path: change.after for change in self.changes()}
        met = sum(change.path in done and done[change.path] == change.after for change in wanted)
        return Judgement(
            judgement.correct, met / len(wanted) if wanted else float(judgement.correct), int(judgement.side_effects)
        )

    def changes(self) -> list[Change]:
        return differences(self.current.start, self.current.backend.data())


@functools.cache
def _start() -> dict[str, Any]:
    return start()


@functools.lru_cache(maxsize=1024)
def _goal(answer: tuple[str, ...]) -> dict[str, Any]:
    return replay(answer)
