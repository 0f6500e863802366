"""A telecom company with one customer, for tests."""

from __future__ import annotations

from rollenv.plugins.suites.tau2.telecom.backend import TelecomBackend
from rollenv.plugins.suites.tau2.telecom.env import PhoneCustomer


def company() -> TelecomBackend:
    """One customer, who has a phone that works."""
    line = {
        "line_id": "L1", "phone_number": "555-1", "status": "Active", "plan_id": "P1", "data_used_gb": 3.0,
        "data_refueling_gb": 0.0, "roaming_enabled": False,
    }  # fmt: skip
    bill = {"bill_id": "B1", "customer_id": "C1", "issue_date": "2025-01-05", "total_due": 40.0, "status": "Overdue"}
    customer = {
        "customer_id": "C1", "full_name": "Ada Lee", "date_of_birth": "1990-01-31", "phone_number": "555-9",
        "line_ids": ["L1"], "bill_ids": ["B1"],
    }  # fmt: skip
    plan = {"plan_id": "P1", "data_limit_gb": 5.0, "data_refueling_price_per_gb": 2.0, "price_per_month": 40.0}
    tables = {"customers": {"C1": customer}, "lines": {"L1": line}, "bills": {"B1": bill}, "devices": {}}
    made = TelecomBackend({**tables, "plans": {"P1": plan}}, phone())
    made.state["caller"] |= {"name": "Ada Lee", "phone_number": "555-1"}
    made.search_network()
    return made


def phone() -> dict[str, object]:
    off = ("sim_card_missing", "airplane_mode", "roaming_enabled", "wifi_enabled", "wifi_connected", "data_saver_mode",
           "wifi_calling_enabled", "wifi_calling_mms_over_wifi", "vpn_connected")  # fmt: skip
    permissions = {"sms": True, "storage": True, "phone": True, "network": False}
    return {
        **dict.fromkeys(off, False),
        "sim_card_status": "active", "wifi_signal_strength": "none", "battery_level": 80, "data_enabled": True,
        "vpn_performance": "",
        "network_mode_preference": "4g_5g_preferred",
        "active_apn_settings": {"apn_name": "internet", "mmsc_url": "http://mms", "reset_at_reboot": False},
        "app_statuses": {"messaging": {"permissions": permissions}},
    }  # fmt: skip


def call(backend: TelecomBackend, name: str, **arguments: object) -> str:
    return backend.call(name, arguments).text


def customer(backend: TelecomBackend, reason: str = "Your mobile data is slow.") -> PhoneCustomer:
    return PhoneCustomer({"reason_for_call": reason, "known_info": "You are Ada Lee with 555-1."}, backend)
