"""Beginnings of telecom tasks, and what has to hold at their end."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.envs.tools.tau2.store import Record, Tables
from rollenv.envs.tools.tau2.telecom.backend import TelecomBackend, charged
from rollenv.envs.tools.tau2.telecom.records import TODAY, phone_from, tables_from
from rollenv.tools.backend import ToolError

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
