"""The functions of a telecom company's service."""

from __future__ import annotations

from rollenv.core.tools.backend import ToolError, tool
from rollenv.plugins.suites.tau2.retail import Record
from rollenv.plugins.suites.tau2.telecom.phone import CUSTOMER, TODAY, Phone

_MOST_GB = 1000.0


class TelecomBackend(Phone):
    """The company's records, for the agent (:data:`AGENT`), and the phone, for the customer (:data:`CUSTOMER`)."""

    # -- looking up ----------------------------------------------------------------------------------------------------

    @tool
    def get_customer_by_phone(self, phone_number: str) -> Record:
        """Find a customer by their own number or the number of one of their lines.

        Args:
            phone_number: such as '555-123-0000'.
        """
        found = self.customer_with(phone_number)
        if found is None:
            raise ToolError(f"there is no customer with the phone number {phone_number[:100]!r}")
        return found

    @tool
    def get_customer_by_id(self, customer_id: str) -> Record:
        """Get a customer.

        Args:
            customer_id: such as 'C0000'.
        """
        return self._customer(customer_id)

    @tool
    def get_customer_by_name(self, full_name: str, dob: str) -> list[Record]:
        """Find the customers with a name and a date of birth.

        Args:
            full_name: such as 'Ada Lee'.
            dob: the date of birth, such as '1990-01-31'.
        """
        wanted = (full_name.casefold().strip(), dob.strip())
        customers = self.state["customers"].values()
        return [each for each in customers if (each["full_name"].casefold(), each["date_of_birth"]) == wanted]

    @tool
    def get_details_by_id(self, id: str) -> Record:
        """Get a customer, line, device, bill or plan.

        Args:
            id: begins with C, L, D, B or P.
        """
        return self.record(id)

    @tool
    def get_bills_for_customer(self, customer_id: str, limit: int = 12) -> list[Record]:
        """Get the bills of a customer, the newest first.

        Args:
            customer_id: such as 'C0000'.
            limit: at most so many.
        """
        bills = [self.record(key) for key in self._customer(customer_id)["bill_ids"]]
        return sorted(bills, key=lambda bill: str(bill["issue_date"]), reverse=True)[: max(limit, 0)]

    @tool
    def get_data_usage(self, customer_id: str, line_id: str) -> Record:
        """Get how much data a line has used in this month, and its limit.

        Args:
            customer_id: whose line it is.
            line_id: such as 'L0000'.
        """
        line = self.of_customer(customer_id, "line", line_id)
        usage = {key: line[key] for key in ("line_id", "data_used_gb", "data_refueling_gb")}
        limit = self.record(line["plan_id"])["data_limit_gb"]
        return {**usage, "data_limit_gb": limit, "cycle_end_date": "2025-02-28"}

    # -- changing ------------------------------------------------------------------------------------------------------

    @tool
    def suspend_line(self, customer_id: str, line_id: str, reason: str) -> Record:
        """Suspend an active line, for 5 dollars a month.

        Args:
            customer_id: whose line it is.
            line_id: such as 'L0000'.
            reason: why.
        """
        line = self.of_customer(customer_id, "line", line_id)
        if line["status"] != "Active":
            raise ToolError("only an active line can be suspended")
        line |= {"status": "Suspended", "suspension_start_date": TODAY}
        return line

    @tool
    def resume_line(self, customer_id: str, line_id: str) -> Record:
        """Resume a suspended line.

        Args:
            customer_id: whose line it is.
            line_id: such as 'L0000'.
        """
        line = self.of_customer(customer_id, "line", line_id)
        if line["status"] not in ("Suspended", "Pending Activation"):
            raise ToolError("only a suspended line can be resumed")
        line["status"] = "Active"
        line.pop("suspension_start_date", None)
        return line

    @tool
    def send_payment_request(self, customer_id: str, bill_id: str) -> str:
        """Ask a customer to pay a bill; one bill at a time. Check first that the bill is not paid.

        Args:
            customer_id: whose bill it is.
            bill_id: such as 'B0000'.
        """
        if self.bills_of(self._customer(customer_id), "Awaiting Payment"):
            raise ToolError("another bill of this customer is awaiting payment")
        self.of_customer(customer_id, "bill", bill_id)["status"] = "Awaiting Payment"
        return f"A payment request for bill {bill_id} was sent to the customer."

    @tool
    def enable_roaming(self, customer_id: str, line_id: str) -> str:
        """Allow a line to be used abroad.

        Args:
            customer_id: whose line it is.
            line_id: such as 'L0000'.
        """
        return self._roaming(customer_id, line_id, True)

    @tool
    def disable_roaming(self, customer_id: str, line_id: str) -> str:
        """Forbid a line to be used abroad.

        Args:
            customer_id: whose line it is.
            line_id: such as 'L0000'.
        """
        return self._roaming(customer_id, line_id, False)

    def _roaming(self, customer_id: str, line_id: str, on: bool) -> str:
        line = self.of_customer(customer_id, "line", line_id)
        already = "already" if line["roaming_enabled"] == on else "now"
        line["roaming_enabled"] = on
        return f"Roaming is {already} {'enabled' if on else 'disabled'}."

    @tool
    def refuel_data(self, customer_id: str, line_id: str, gb_amount: float) -> Record:
        """Add data to a line for this month; its plan's price goes to the next bill.

        Args:
            customer_id: whose line it is.
            line_id: such as 'L0000'.
            gb_amount: gigabytes to add.
        """
        line = self.of_customer(customer_id, "line", line_id)
        if not 0 < gb_amount <= _MOST_GB:
            raise ToolError(f"gb_amount is more than 0 and at most {_MOST_GB:g}")
        price = self.record(line["plan_id"])["data_refueling_price_per_gb"]
        charge = round(gb_amount * price, 2)
        line["data_refueling_gb"] += gb_amount
        description = f"Data refueling: {gb_amount} GB at ${price}/GB"
        customer = self._customer(customer_id)
        drafts = self.bills_of(customer, "Draft")
        bill = drafts[0] if drafts else self._next_bill(customer)
        bill["line_items"].append(charged(description, charge))
        bill["total_due"] = round(bill["total_due"] + charge, 2)
        return {"line_id": line_id, "new_data_refueling_gb": line["data_refueling_gb"], "charge": charge}

    def _next_bill(self, customer: Record) -> Record:
        key = f"B{max(int(known[1:]) for known in self.state['bills']) + 1}"
        customer["bill_ids"].append(key)
        dates = {"period_start": "2025-03-01", "period_end": "2025-03-31", "issue_date": "2025-03-01"}
        rest = {"total_due": 0.0, "due_date": "2025-03-15", "status": "Draft", "line_items": []}
        self.state["bills"][key] = {"bill_id": key, "customer_id": customer["customer_id"], **dates, **rest}
        return self.state["bills"][key]  # type: ignore[no-any-return]

    @tool
    def transfer_to_human_agents(self, summary: str) -> str:
        """Transfer the user to a human agent: only if they ask for it, or if what they want cannot be done.

        Args:
            summary: of what the user wants.
        """
        self.state["transferred"] = True
        return "Transfer successful"


def charged(description: str, amount: float) -> Record:
    """Return an item of a bill."""
    return {"description": description, "amount": amount, "date": TODAY, "item_type": "Charge"}


#: The agent's functions.
AGENT = tuple(name for name in TelecomBackend.functions() if name not in CUSTOMER)
