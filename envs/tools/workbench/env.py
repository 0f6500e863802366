"""WorkBench as an environment."""

from __future__ import annotations

import functools
from typing import Any

from rollenv.core import UsageError
from rollenv.envs.tools.base import ToolEnv
from rollenv.envs.tools.problem import Call, Judgement, Problem
from rollenv.envs.tools.workbench.functions import WorkBench
from rollenv.envs.tools.workbench.replay import judged, parsed, queries, replay
from rollenv.envs.tools.workbench.tables import TODAY, start, visible
from rollenv.tools.backend import Change, differences

_POLICY = (
    f"You work in an office through its functions. Today is Thursday, {TODAY}, and it is 00:00:00; dates in requests "
    "are meant from there. No meeting may begin before 9:00 or end after 18:00. Nobody answers questions: do what is "
    "asked, and only that, then write a message without a call."
)
_EVERYWHERE = "company_directory"


class WorkBenchEnv(ToolEnv):
    """WorkBench (arXiv 2405.00823): 690 requests in an office; the tables at the end decide.

    The 27 functions search and change calendar, mail, web analytics, project board and customers. An episode is solved
    if the tables are the ones that the published calls leave, upper and lower case being the same except in names of
    lists, boards and statuses. ``metrics`` has ``side_effects`` 1 where something was changed in an episode that is not
    solved. An agent that does nothing solves 124 of the 690 (18 %): what they make depend on
    a condition is not to be done.

    Two things differ from the original's agent loop, not from its verdicts: searches take texts literally, not as
    regular expressions, and ``domains`` offers the customer functions wherever a request needs them (the original
    leaves them out of requests over several domains).

    Args:
        category: analytics, calendar, crm, email, multi_domain or project_management; all if empty.
        toolkits: ``all`` functions, or those of the ``domains`` that the request needs.
        settings: of :class:`~rollenv.envs.tools.base.ToolEnv`.
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
            plan=[plan] if (plan := _plan(query.answer)) else [],
            name=f"{query.category}/{key}",
            goal=_goal(query.answer),
            policy=_POLICY,
            tools=offered,
            category=query.category,
            before=_start(),
        )

    def judge(self, problem: Problem) -> Judgement:
        state = problem.backend.data()
        told = judged(state, problem.wanted)
        wanted = differences(visible(problem.start), visible(problem.wanted))
        done = {change.path: change.after for change in self.changes()}
        met = sum(change.path in done and done[change.path] == change.after for change in wanted)
        return Judgement(told.correct, met / len(wanted) if wanted else float(told.correct), int(told.side_effects))

    def changes(self) -> list[Change]:
        return differences(visible(self.current.start), visible(self.current.backend.data()))


@functools.cache
def _start() -> dict[str, Any]:
    return start()


@functools.lru_cache(maxsize=1024)
def _goal(answer: tuple[str, ...]) -> dict[str, Any]:
    return replay(answer)


def _plan(answer: tuple[str, ...]) -> list[Call]:
    return [(call.name, call.arguments) for call in map(parsed, answer) if not call.problem]
