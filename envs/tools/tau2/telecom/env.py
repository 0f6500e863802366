"""tau2-bench's telecom tasks as an environment."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.core import UsageError
from rollenv.envs.tools.base import ToolEnv
from rollenv.envs.tools.problem import Judgement, Move, Problem, counted
from rollenv.envs.tools.tau2 import TELECOM_NEED
from rollenv.envs.tools.tau2.retail import Record, Tables
from rollenv.envs.tools.tau2.telecom.backend import AGENT, TelecomBackend, charged
from rollenv.envs.tools.tau2.telecom.customer import PhoneCustomer
from rollenv.envs.tools.tau2.telecom.phone import CUSTOMER
from rollenv.envs.tools.tau2.telecom.records import TODAY, phone_from, tables_from
from rollenv.tools.backend import ToolError, differences
from rollenv.tools.calls import write_calls

Row = Mapping[str, Any]
#: What the actions that set up a task change on the phone, and whether it then looks for a network.
_PHONE: dict[str, tuple[Record, bool]] = {
    "turn_airplane_mode_on": ({"airplane_mode": True}, True),
    "turn_data_off": ({"data_enabled": False}, True),
    "turn_roaming_on": ({"roaming_enabled": True}, True),
    "turn_roaming_off": ({"roaming_enabled": False}, True),
    "turn_data_saver_mode_on": ({"data_saver_mode": True}, False),
    "unseat_sim_card": ({"sim_card_missing": True}, True),
    "break_vpn": ({"vpn_connected": True, "vpn_performance": "poor"}, False),
    "simulate_network_search": ({}, True),
}


@functools.lru_cache(maxsize=4)
def rows_of(folder: Path) -> Sequence[Row]:
    """The tasks of the small set, in the order of the file; never changed."""
    rows: Sequence[Row] = json.loads((folder / "tasks_small.json").read_text(encoding="utf-8"))
    return rows


@functools.lru_cache(maxsize=4)
def _given(folder: Path) -> tuple[Tables, Record]:
    company, user = (tomllib.loads((folder / name).read_text(encoding="utf-8")) for name in ("db.toml", "user_db.toml"))
    return tables_from(company), phone_from(user)


def backend_of(folder: Path, key: int) -> TelecomBackend:
    """The company and the phone at the start of a task.

    Args:
        key: the number of the task.
    """
    return _start(folder, key).twin()


@functools.lru_cache(maxsize=64)
def _start(folder: Path, key: int) -> TelecomBackend:
    backend = TelecomBackend(*_given(folder))
    for action in rows_of(folder)[key]["initial_state"]["initialization_actions"]:
        _set_up(backend, action["func_name"], action["arguments"])
    return backend


@functools.lru_cache(maxsize=64)
def goal_of(folder: Path, key: int) -> Mapping[str, Any]:
    """The state after the published actions of a task; never changed.

    Args:
        key: the number of the task.
    """
    backend = backend_of(folder, key)
    for action in rows_of(folder)[key]["evaluation_criteria"]["actions"]:
        backend.call(action["name"], action["arguments"])
    return backend.data()


def _set_up(backend: TelecomBackend, name: str, given: Mapping[str, Any]) -> None:
    """One of the actions that break something."""
    phone = backend.phone
    if name in _PHONE:
        changes, searches = _PHONE[name]
        phone |= changes
        if searches:
            backend.search_network()
    elif name in ("set_user_info", "set_user_location"):
        backend.state["caller"] |= given
    elif name == "lock_sim_card":
        phone["sim_card_status"] = f"locked_{given['mode']}"
        backend.search_network()
    elif name == "break_apn_settings":
        phone["active_apn_settings"]["apn_name"] = "broken"
        backend.search_network()
    elif name == "break_apn_mms_setting":
        phone["active_apn_settings"]["mmsc_url"] = ""
    elif name == "set_wifi_calling":
        phone |= {"wifi_calling_enabled": given["enabled"], "wifi_calling_mms_over_wifi": given["mms_over_wifi"]}
    elif name == "remove_app_permission":
        phone["app_statuses"][given["app_name"]]["permissions"][given["permission"]] = False
    elif name == "set_data_usage":
        backend.of_customer(given["customer_id"], "line", given["line_id"])["data_used_gb"] = given["data_used_gb"]
    elif name == "suspend_line_for_overdue_bill":
        _suspend(backend, **given)
    elif (answer := backend.call(name, given)).failed:
        raise ToolError(f"a task cannot be set up: {answer.text}")


def _suspend(backend: TelecomBackend, customer_id: str, line_id: str, new_bill_id: str, contract_ended: bool) -> None:
    line = backend.of_customer(customer_id, "line", line_id)
    price = backend.record(line["plan_id"])["price_per_month"]
    dates = {"period_start": "2025-01-01", "period_end": "2025-01-31", "issue_date": "2025-01-01"}
    owed = {"total_due": price, "due_date": "2025-01-15", "status": "Overdue"}
    items = [charged(f"Charge for line {line_id}", price)]
    bill = {"bill_id": new_bill_id, "customer_id": customer_id, **dates, **owed, "line_items": items}
    backend.state["bills"][new_bill_id] = bill
    backend.record(customer_id)["bill_ids"].append(new_bill_id)
    line |= {"status": "Suspended", "suspension_start_date": TODAY}
    if contract_ended:
        line["contract_end_date"] = "2025-01-31"


def checks_of(backend: TelecomBackend, row: Row) -> list[bool]:
    """For each thing that a task wants at its end, whether it is so."""
    wanted = row["evaluation_criteria"]
    held = [
        _holds(backend, each["func_name"], each["arguments"]) == each["assert_value"]
        for each in wanted["env_assertions"]
    ]
    # Of the published actions only the transfer is asked for in the tasks that are judged by actions.
    return [*held, backend.state["transferred"]] if "ACTION" in wanted["reward_basis"] else held


def _holds(backend: TelecomBackend, name: str, given: Mapping[str, Any]) -> bool:
    match name:
        case "assert_mobile_data_status":
            return backend.online() == bool(given["expected_status"])
        case "assert_internet_speed":
            speed, called = backend.speed()
            return bool(speed >= given["expected_speed"]) and called.lower() == given["expected_desc"].lower()
        case "assert_can_send_mms":
            return backend.sends_mms() == bool(given["expected_status"])
        case "assert_service_status":
            return bool(backend.phone["network_connection_status"] == given["expected_status"])
        case "assert_no_overdue_bill":
            bill = backend.state["bills"].get(given["overdue_bill_id"])
            return bill is None or bill["status"] == "Paid"
        case "assert_data_refueling_amount":
            line = backend.of_customer(given["customer_id"], "line", given["line_id"])
            return bool(abs(line["data_refueling_gb"] - given["expected_amount"]) < 1e-6)
    raise ValueError(f"the tasks have an assertion that is not known here: {name}")


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
        self.folder = TELECOM_NEED.found()
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
