"""A telecom company's records of its customers, and what follows from them for one phone."""

from __future__ import annotations

import copy
from typing import Any

from rollenv.envs.tools.tau2.retail import Record, Tables
from rollenv.tools.backend import Backend, ToolError

#: The day that the policy names.
TODAY = "2025-02-25"
#: First letters of ids, and where these records are.
TABLES = {"C": "customers", "L": "lines", "B": "bills", "D": "devices", "P": "plans"}


class Records(Backend):
    """The records, the phone of the customer who calls (``phone``), and who and where they are (``caller``).

    Args:
        tables: the records at the start. Plans and devices never change and are shared; the rest is copied.
        phone: its settings at the start.
    """

    def __init__(self, tables: Tables, phone: Record):
        own = {name: copy.deepcopy(dict(tables[name])) for name in ("customers", "lines", "bills")}
        caller = {"name": "", "phone_number": "", "abroad": False}
        super().__init__({**own, "phone": copy.deepcopy(phone), "caller": caller, "transferred": False})
        self.shared = {name: tables[name] for name in ("devices", "plans")}

    def record(self, key: str) -> Record:
        """A record by its id.

        Raises:
            ToolError: there is none.
        """
        table = TABLES.get(key[:1], "")
        found = (self.shared if table in self.shared else self.state).get(table, {}).get(key)
        if found is None:
            raise ToolError(f"there is no record with the id {key[:100]!r}")
        return found

    def of_customer(self, customer_id: str, table: str, key: str) -> Record:
        """A line or a bill of a customer.

        Args:
            table: ``line`` or ``bill``.

        Raises:
            ToolError: there is none.
        """
        if key not in self._customer(customer_id)[f"{table}_ids"]:
            raise ToolError(f"customer {customer_id} has no {table} {key[:100]!r}")
        return self.record(key)

    def _customer(self, customer_id: str) -> Record:
        if customer_id not in self.state["customers"]:
            raise ToolError(f"there is no customer with the id {customer_id[:100]!r}")
        return self.state["customers"][customer_id]  # type: ignore[no-any-return]

    def customer_with(self, phone_number: str) -> Record | None:
        """The customer whose own number, or one of whose lines, this is; only digits count."""
        wanted = _digits(phone_number)
        for customer in self.state["customers"].values():
            lines = [self.record(key) for key in customer["line_ids"]]
            if wanted and wanted in [_digits(each["phone_number"]) for each in (customer, *lines)]:
                return customer  # type: ignore[no-any-return]
        return None

    def bills_of(self, customer: Record, status: str) -> list[Record]:
        """The bills of a customer that have a status.

        Args:
            status: such as ``Overdue``.
        """
        bills = [self.record(key) for key in customer["bill_ids"]]
        return [bill for bill in bills if bill["status"] == status]

    # -- what follows for the phone ------------------------------------------------------------------------------------

    @property
    def line(self) -> Record:
        """The line of the phone."""
        number = self.state["caller"]["phone_number"]
        return next(line for line in self.state["lines"].values() if line["phone_number"] == number)

    def used_up(self) -> bool:
        """Return whether the line has no data left."""
        line = self.line
        limit = self.record(line["plan_id"])["data_limit_gb"] + line["data_refueling_gb"]
        return bool(line["data_used_gb"] >= limit)

    def asked_to_pay(self) -> Record | None:
        """The bill for which the customer has a payment request."""
        customer = self.customer_with(self.state["caller"]["phone_number"])
        waiting = self.bills_of(customer, "Awaiting Payment") if customer else []
        return waiting[0] if waiting else None


def tables_from(data: dict[str, list[Record]]) -> Tables:
    """The lists of ``db.toml`` as tables by id."""
    return {name: {record[f"{name[:-1]}_id"]: record for record in data[name]} for name in TABLES.values()}


def phone_from(data: dict[str, Any]) -> Record:
    """The phone of ``user_db.toml``, with what the file leaves out."""
    phone = copy.deepcopy(data["device"])
    phone["active_apn_settings"] = {"reset_at_reboot": False, **phone["active_apn_settings"]}
    return {"vpn_performance": "", **phone}


def _digits(text: str) -> str:
    return "".join(each for each in text if each in "0123456789")
