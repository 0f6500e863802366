"""WorkBench's 27 functions: a customer register here, the others in the bases."""

from __future__ import annotations

from typing import Any

from rollenv.envs.tools.workbench.messages import Messages
from rollenv.envs.tools.workbench.projects import Projects
from rollenv.envs.tools.workbench.tables import MOST, Text, has, quoted
from rollenv.tools.backend import tool

STATUSES = ("Qualified", "Won", "Lost", "Lead", "Proposal")
PRODUCTS = ("Software", "Hardware", "Services", "Consulting", "Training")
_FIELDS = (
    "customer_name",
    "assigned_to_email",
    "customer_email",
    "customer_phone",
    "last_contact_date",
    "product_interest",
    "status",
    "notes",
    "follow_up_by",
)


class WorkBench(Messages, Projects):
    """An office with calendar, mail, web analytics, a project board and customers, as of 30 November 2023."""

    @tool
    def customer_relationship_manager_search_customers(
        self,
        customer_name: Text = None,
        customer_email: Text = None,
        product_interest: Text = None,
        status: Text = None,
        assigned_to_email: Text = None,
        last_contact_date_min: Text = None,
        last_contact_date_max: Text = None,
        follow_up_by_min: Text = None,
        follow_up_by_max: Text = None,
    ) -> Any:
        """Find customers; of texts a part is enough, and at most five are returned.

        Args:
            customer_name: of the customer.
            customer_email: of the customer.
            product_interest: Software, Hardware, Services, Consulting or Training.
            status: Qualified, Won, Lost, Lead or Proposal.
            assigned_to_email: address of who looks after the customer.
            last_contact_date_min: the first day of the last contact, as YYYY-MM-DD.
            last_contact_date_max: the last day of the last contact, as YYYY-MM-DD.
            follow_up_by_min: the first day to follow up by, as YYYY-MM-DD.
            follow_up_by_max: the last day to follow up by, as YYYY-MM-DD.
        """
        texts = {"customer_name": customer_name, "customer_email": customer_email, "status": status}
        texts |= {"product_interest": product_interest, "assigned_to_email": assigned_to_email}
        given = [(column, text) for column, text in texts.items() if text]
        spans = (
            ("last_contact_date", last_contact_date_min, last_contact_date_max),
            ("follow_up_by", follow_up_by_min, follow_up_by_max),
        )
        dates = [(column, low or "", high or "\U0010ffff") for column, low, high in spans if low or high]
        if not given and not dates:
            return "No search parameters provided. Please provide at least one parameter."
        return [
            row
            for row in self.rows("customers")
            if all(has(row, column, text) for column, text in given)
            and all(row[column] and low <= row[column] <= high for column, low, high in dates)
        ][:MOST]

    @tool
    def customer_relationship_manager_update_customer(
        self, customer_id: Text = None, field: Text = None, new_value: Text = None
    ) -> str:
        """Change one field of a customer.

        Args:
            customer_id: of the customer.
            field: customer_name, assigned_to_email, customer_email, customer_phone, last_contact_date, product_interest, status, notes or follow_up_by.
            new_value: of the field.
        """  # noqa: E501
        if not customer_id or not field or not new_value:
            return "Customer ID, field, or new value not provided."
        if field == "status" and new_value not in STATUSES:
            return f"Status not valid. Please choose from: {quoted(STATUSES)}"
        if field == "product_interest" and new_value not in PRODUCTS:
            return f"Product interest not valid. Please choose from: {quoted(PRODUCTS)}"
        value = new_value.lower() if field in ("customer_email", "assigned_to_email") else new_value
        if self.find("customers", customer_id) is None:
            return "Customer not found."
        if field not in self.columns("customers"):
            return f"Field not valid. Please choose from: {quoted(_FIELDS)}"
        self.replace("customers", customer_id, field, value)
        return "Customer updated successfully."

    @tool
    def customer_relationship_manager_add_customer(
        self,
        customer_name: Text = None,
        assigned_to_email: Text = None,
        status: Text = None,
        customer_email: Text = None,
        customer_phone: Text = None,
        last_contact_date: Text = None,
        product_interest: Text = None,
        notes: Text = "",
        follow_up_by: Text = None,
    ) -> str:
        """Add a customer; returns the id.

        Args:
            customer_name: of the customer.
            assigned_to_email: address of who looks after the customer.
            status: Qualified, Won, Lost, Lead or Proposal.
            customer_email: of the customer.
            customer_phone: of the customer.
            last_contact_date: as YYYY-MM-DD.
            product_interest: Software, Hardware, Services, Consulting or Training.
            notes: about the customer.
            follow_up_by: the day to follow up by, as YYYY-MM-DD.
        """
        if not customer_name or not assigned_to_email or not status:
            return "Please provide all required fields: customer_name, assigned_to_email, status."
        customer_id = str(self.next_id("customers")).zfill(8)
        row = {
            "customer_id": customer_id,
            "assigned_to_email": assigned_to_email.lower(),
            "customer_name": customer_name,
            "customer_email": customer_email.lower() if customer_email else customer_email,
            "customer_phone": customer_phone,
            "last_contact_date": last_contact_date,
            "product_interest": product_interest,
            "status": status,
            "follow_up_by": follow_up_by,
            "notes": notes,
        }
        self.append("customers", row, label=0)
        self.relabel("customers")
        return customer_id

    @tool
    def customer_relationship_manager_delete_customer(self, customer_id: Text = None) -> str:
        """Delete a customer.

        Args:
            customer_id: of the customer.
        """
        return self.remove("customers", customer_id, "Customer")
