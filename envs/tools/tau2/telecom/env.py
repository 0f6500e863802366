"""tau2-bench's telecom tasks as an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollenv.core import UsageError
from rollenv.envs.tools.base import ToolEnv
from rollenv.envs.tools.problem import Judgement, Move, Problem, counted
from rollenv.envs.tools.published import folder_of
from rollenv.envs.tools.tau2 import TELECOM_NEED
from rollenv.envs.tools.tau2.telecom.backend import AGENT
from rollenv.envs.tools.tau2.telecom.customer import PhoneCustomer
from rollenv.envs.tools.tau2.telecom.settings import CUSTOMER
from rollenv.envs.tools.tau2.telecom.world import Row, backend_of, checks_of, goal_of, rows_of
from rollenv.tools.backend import differences
from rollenv.tools.calls import write_calls

SUPPORT = ("manual", "workflow")
_TRANSFER = "transfer_to_human_agents"
_ON_HOLD = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."


class TelecomEnv(ToolEnv):
    """A company's technical support: a customer's phone has no service, slow data or no MMS (tau2-bench, telecom).

    The agent's functions change the company's records; the phone is changed by its owner, who does what a message
    asks for. Solved is a task whose published assertions hold at the end, and, for two of the 20, whose customer was
    transferred. As upstream, only the end counts: transferring at once solves these two, and asking for every repair
    without a look at anything solves 14 others, most of them with ``side_effects``.

    The customer is scripted; a language model cannot play them yet.

    Args:
        support: which text on technical support the policy has: ``manual`` or ``workflow``.
        settings: see :class:`~rollenv.envs.tools.base.ToolEnv`.
    """

    def __init__(self, *, support: str = "manual", **settings: Any):
        if support not in SUPPORT:
            raise UsageError(f"support={support!r} is unknown; choose from {', '.join(SUPPORT)}")
        self.folder = folder_of(TELECOM_NEED)
        texts = {"main_policy": "main_policy.md", "tech_support_policy": f"tech_support_{support}.md"}
        parts = [(tag, (self.folder / name).read_text(encoding="utf-8").strip()) for tag, name in texts.items()]
        self.policy = "\n".join(f"<{tag}>\n{text}\n</{tag}>" for tag, text in parts)
        self.rows = rows_of(self.folder)
        self.tasks = len(self.rows)
        super().__init__(**settings)

    def problem(self, key: int) -> Problem:
        row, backend = self.rows[key], backend_of(self.folder, key)
        customer = PhoneCustomer(row["user_scenario"]["instructions"], backend)
        return Problem(
            question=customer.opening,
            backend=backend,
            plan=_plan(row),
            name=row["id"],
            goal=goal_of(self.folder, key),
            user=customer,
            policy=self.policy,
            tools=AGENT,
            category=row["id"].partition("]")[0].strip("["),
        )

    def judge(self, problem: Problem) -> Judgement:
        row, start, now = self.rows[self.key], problem.start, problem.backend.data()
        broken = [not held for held in checks_of(backend_of(self.folder, self.key), row)]
        held = checks_of(problem.backend, row)  # type: ignore[arg-type]
        mended = sum(was and is_so for was, is_so in zip(broken, held, strict=True))
        _, aside = counted(differences(start, now), differences(start, problem.wanted))
        return Judgement(all(held), mended / sum(broken), aside)

    def sample_random_action(self) -> str:
        """A look at the records or at the phone."""
        rng = self.action_rng
        if rng.random() < 0.1:
            return self.closing()
        if rng.random() < 0.5:
            return _asking(rng.choice([name for name in CUSTOMER if name.startswith("check") and "app" not in name]))
        state = self.current.backend.data()
        key = rng.choice([key for table in ("customers", "lines", "bills") for key in state[table]])
        return write_calls([("get_details_by_id", {"id": key})], self.calls)


def _plan(row: Row) -> list[Move]:
    """The published actions: the agent's by a call, the customer's by asking for them."""
    moves: list[Move] = []
    for action in row["evaluation_criteria"]["actions"]:
        if action["requestor"] == "user":
            moves.append(_asking(action["name"], action["arguments"]))
        else:
            moves.append([(action["name"], dict(action["arguments"]))])
    ends = any(action["name"] == _TRANSFER for action in row["evaluation_criteria"]["actions"])
    return [*moves, _ON_HOLD if ends else "Done."]


def _asking(name: str, arguments: Mapping[str, Any] | None = None) -> str:
    written = ", ".join(f"{key}={value!r}" for key, value in (arguments or {}).items())
    return f"Please use {name}({written}) on your phone."
