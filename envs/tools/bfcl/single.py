"""BFCL's categories of a single turn."""

from __future__ import annotations

from typing import Any

from rollenv.core import StepResult, UsageError
from rollenv.envs.tools.base import ToolEnv
from rollenv.envs.tools.bfcl import SINGLE
from rollenv.envs.tools.bfcl.checker import check, first_right
from rollenv.envs.tools.bfcl.source import Described, Entry, answers, entries, plain_name, schema
from rollenv.envs.tools.problem import Judgement, Problem
from rollenv.tools.calls import ToolCall, find_calls

_POLICY = (
    "Answer the request with calls of the functions that it needs, all in one reply and without other text; they are "
    "not carried out. Where no function fits, or one fits but lacks what it must be given, say so without a call."
)


class BFCLEnv(ToolEnv):
    """BFCL's tasks of one turn: the calls in the reply are checked, not carried out.

    Calls are right where bfcl-eval's checker of syntax trees says so; of ``irrelevance`` every reply without a call is.
    So a constant reply without calls has 100 % of ``irrelevance`` and nothing elsewhere: look at them together.

    Functions are shown with underscores for the dots of their names; calls may use either.

    Args:
        category: simple_python, multiple, parallel or irrelevance.
        settings: of :class:`~rollenv.envs.tools.base.ToolEnv`.
    """

    def __init__(self, *, category: str = "simple_python", **settings: Any):
        super().__init__(**settings)
        if category not in SINGLE:
            raise UsageError(f"BFCL has no category {category!r} of one turn; choose from {', '.join(SINGLE)}")
        self.category = category
        self.entries, self.answers = entries(category), answers(category)
        self.tasks = len(self.entries)

    def _fresh(self) -> None:
        super()._fresh()
        self.problem_seen = ""

    def problem(self, key: int) -> Problem:
        entry = self.entries[key]
        described = {about["name"]: about for about in entry["function"]}
        right = [next(iter(wanted.items())) for wanted in self.answers.get(entry["id"], ())]
        plan = [(plain_name(name), first_right(described[name], possible)) for name, possible in right]
        return Problem(
            "\n".join(message["content"] for message in entry["question"][0]),
            Described([schema(about) for about in entry["function"]]),
            plan=[plan] if plan else [],
            name=entry["id"],
            policy=_POLICY,
            category=self.category,
        )

    def _step(self, action: str) -> StepResult:
        self.turn += 1
        found, message = find_calls(action, self.calls, self.current.backend.schemas())
        self.called, self.failed = len(found), sum(bool(call.problem) for call in found)
        self.messages.append(message)
        wrong = self._wrong(self.entries[self.key], found)
        self.last = self.problem_seen = wrong.encode(errors="replace").decode()  # names may hold lone surrogates
        return self._after(ended=True, valid=not self.failed, info={"use_tool": bool(found)})

    def _wrong(self, entry: Entry, found: list[ToolCall]) -> str:
        """Return what is wrong with the reply; empty if nothing is."""
        if self.category == "irrelevance":
            return "no function fits, but one is called" if found else ""
        if problems := [call.problem for call in found if call.problem]:
            return problems[0]
        names = {plain_name(about["name"]): about["name"] for about in entry["function"]}
        calls = [(names.get(call.name, call.name), call.arguments) for call in found]
        return check(entry["function"], calls, self.answers[entry["id"]])

    def judge(self, problem: Problem) -> Judgement:
        right = not self.problem_seen
        return Judgement(right, float(right))

    def closing(self) -> str:
        return "None of the functions fits."
