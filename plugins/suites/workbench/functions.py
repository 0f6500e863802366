"""WorkBench's 27 functions: calendar, mail, company directory, project board, web pages and customer register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollenv.core.tools.backend import tool
from rollenv.plugins.suites.workbench.tables import MOST, TODAY, Row, Tables, Text, between, has, office, quoted

METRICS = (
    "total_visits",
    "session_duration_seconds",
    "user_engaged",
    "visits_direct",
    "visits_referral",
    "visits_search_engine",
    "visits_social_media",
)
PLOTS = ("bar", "line", "scatter", "histogram")
LISTS = ("Backlog", "In Progress", "In Review", "Completed")
BOARDS = ("Back end", "Front end", "Design")
_NOT_A_METRIC = (
    "Value to plot must be one of 'total_visits', 'session_duration_seconds', 'user_engaged', 'direct', 'referral', "
    "'search engine', 'social media'"
)


def _by_day(time_min: str | None, time_max: str | None, value: Callable[[Row], float]) -> dict[str, list[float]]:
    days: dict[str, list[float]] = {}
    for row in office().visits:
        day = row["date_of_visit"]
        if (not time_min or day >= time_min) and (not time_max or day <= time_max):
            days.setdefault(day, []).append(value(row))
    return dict(sorted(days.items()))


class Projects(Tables):
    """Functions of analytics and project board."""

    # -- analytics -----------------------------------------------------------------------------------------------------

    @tool
    def analytics_get_visitor_information_by_id(self, visitor_id: Text = None) -> Any:
        """Look up the visits of a visitor to the web site.

        Args:
            visitor_id: of the visitor.
        """
        if not visitor_id:
            return "Visitor ID not provided."
        return [row for row in office().visits if row["visitor_id"] == visitor_id] or "Visitor not found."

    @tool
    def analytics_create_plot(
        self, time_min: Text = None, time_max: Text = None, value_to_plot: Text = None, plot_type: Text = None
    ) -> str:
        """Draw a plot of a metric over some days; returns the path of its file.

        Args:
            time_min: the first day, as YYYY-MM-DD.
            time_max: the last day, as YYYY-MM-DD.
            value_to_plot: total_visits, session_duration_seconds, user_engaged, visits_direct, visits_referral, visits_search_engine or visits_social_media.
            plot_type: bar, line, scatter or histogram.
        """  # noqa: E501
        if not time_min:
            return "Start date not provided."
        if not time_max:
            return "End date not provided."
        if value_to_plot not in METRICS:
            return _NOT_A_METRIC
        if plot_type not in PLOTS:
            return "Plot type must be one of 'bar', 'line', 'scatter', or 'histogram'"
        path = f"plots/{time_min}_{time_max}_{value_to_plot}_{plot_type}.png"
        self.append("plots", {"file_path": path})
        return path

    @tool
    def analytics_total_visits_count(self, time_min: Text = None, time_max: Text = None) -> Any:
        """Count the visits of each day.

        Args:
            time_min: the first day, as YYYY-MM-DD.
            time_max: the last day, as YYYY-MM-DD.
        """
        return {day: len(each) for day, each in _by_day(time_min, time_max, lambda row: 1).items()}

    @tool
    def analytics_engaged_users_count(self, time_min: Text = None, time_max: Text = None) -> Any:
        """Count the engaged users of each day.

        Args:
            time_min: the first day, as YYYY-MM-DD.
            time_max: the last day, as YYYY-MM-DD.
        """
        return {
            day: sum(each) for day, each in _by_day(time_min, time_max, lambda row: int(row["user_engaged"])).items()
        }

    @tool
    def analytics_traffic_source_count(
        self, time_min: Text = None, time_max: Text = None, traffic_source: Text = None
    ) -> Any:
        """Count the visits of each day that came from one source.

        Args:
            time_min: the first day, as YYYY-MM-DD.
            time_max: the last day, as YYYY-MM-DD.
            traffic_source: direct, referral, search engine or social media; all of them if it is left out.
        """

        def came(row: Row) -> int:
            return int(not traffic_source or row["traffic_source"] == traffic_source)

        return {day: sum(each) for day, each in _by_day(time_min, time_max, came).items()}

    @tool
    def analytics_get_average_session_duration(self, time_min: Text = None, time_max: Text = None) -> Any:
        """Average the length of the sessions of each day, in seconds.

        Args:
            time_min: the first day, as YYYY-MM-DD.
            time_max: the last day, as YYYY-MM-DD.
        """
        days = _by_day(time_min, time_max, lambda row: float(row["session_duration_seconds"]))
        return {day: sum(each) / len(each) for day, each in days.items()}

    # -- project board -------------------------------------------------------------------------------------------------

    @tool
    def project_management_get_task_information_by_id(self, task_id: Text = None, field: Text = None) -> Any:
        """Look up one field of a task.

        Args:
            task_id: eight digits.
            field: task_id, task_name, assigned_to_email, list_name, due_date or board.
        """
        return self.field("tasks", task_id, field, "Task")

    @tool
    def project_management_search_tasks(
        self,
        task_name: Text = None,
        assigned_to_email: Text = None,
        list_name: Text = None,
        due_date: Text = None,
        board: Text = None,
    ) -> Any:
        """Find tasks; of each argument a part of the field is enough.

        Args:
            task_name: of the task.
            assigned_to_email: address of whose task it is.
            list_name: Backlog, In Progress, In Review or Completed.
            due_date: as YYYY-MM-DD.
            board: Back end, Front end or Design.
        """
        asked = {"task_name": task_name, "assigned_to_email": assigned_to_email, "list_name": list_name}
        asked |= {"due_date": due_date, "board": board}
        given = [(column, text) for column, text in asked.items() if text]
        if not given:
            return "No search parameters provided."
        return [row for row in self.rows("tasks") if all(has(row, column, text) for column, text in given)]

    @tool
    def project_management_create_task(
        self,
        task_name: Text = None,
        assigned_to_email: Text = None,
        list_name: Text = None,
        due_date: Text = None,
        board: Text = None,
    ) -> str:
        """Add a task; returns its id.

        Args:
            task_name: of the task.
            assigned_to_email: address of whose task it is.
            list_name: Backlog, In Progress, In Review or Completed.
            due_date: as YYYY-MM-DD.
            board: Back end, Front end or Design.
        """
        if not task_name or not assigned_to_email or not list_name or not due_date or not board:
            return "Missing task details."
        email = assigned_to_email.lower()
        for field, value in (("assigned_to_email", email), ("list_name", list_name), ("board", board)):
            if wrong := self._not_for_tasks(field, value):
                return wrong
        task_id = str(self.next_id("tasks")).zfill(8)
        row = {"task_id": task_id, "task_name": task_name, "assigned_to_email": email, "list_name": list_name}
        self.append("tasks", row | {"due_date": due_date, "board": board})
        return task_id

    def _not_for_tasks(self, field: str, value: str) -> str:
        """Return the error of a value; empty if it is valid."""
        if field == "board" and value not in BOARDS:
            return f"Board not valid. Please choose from: {quoted(BOARDS)}."
        if field == "list_name" and value not in LISTS:
            return f"List not valid. Please choose from: {quoted(LISTS)}."
        team = (row["assigned_to_email"].lower() for row in self.rows("tasks"))
        if field == "assigned_to_email" and value not in team:
            return "Assignee email not valid. Please choose from the list of team members."
        return ""

    @tool
    def project_management_delete_task(self, task_id: Text = None) -> str:
        """Delete a task.

        Args:
            task_id: eight digits.
        """
        return self.remove("tasks", task_id, "Task")

    @tool
    def project_management_update_task(self, task_id: Text = None, field: Text = None, new_value: Text = None) -> str:
        """Change one field of a task.

        Args:
            task_id: eight digits.
            field: task_name, assigned_to_email, list_name, due_date or board.
            new_value: of the field.
        """
        if not task_id or not field or not new_value:
            return "Task ID, field, or new value not provided."
        value = new_value.lower() if field == "assigned_to_email" else new_value
        if wrong := self._not_for_tasks(field, value):
            return wrong
        if self.find("tasks", task_id) is None:
            return "Task not found."
        if field not in self.columns("tasks"):
            return "Field not valid."
        self.replace("tasks", task_id, field, value)
        return "Task updated successfully."


class Messages(Tables):
    """Functions of calendar, mail and directory."""

    # -- calendar ------------------------------------------------------------------------------------------------------

    @tool
    def calendar_get_event_information_by_id(self, event_id: Text = None, field: Text = None) -> Any:
        """Look up one field of an event.

        Args:
            event_id: eight digits.
            field: event_id, event_name, participant_email, event_start or duration.
        """
        return self.field("calendar", event_id, field, "Event")

    @tool
    def calendar_search_events(self, query: Text = "", time_min: Text = None, time_max: Text = None) -> Any:
        """Find events by name or participant and time; at most five are returned.

        Args:
            query: part of the event's name or of the participant's address.
            time_min: the earliest start, as YYYY-MM-DD HH:MM:SS.
            time_max: the latest start, as YYYY-MM-DD HH:MM:SS.
        """
        inside = between(time_min, time_max, "event_start")
        if isinstance(inside, str):
            return inside
        text = query or ""
        named = [r for r in self.rows("calendar") if has(r, "event_name", text) or has(r, "participant_email", text)]
        return [row for row in named if inside(row)][:MOST] or "No events found."

    @tool
    def calendar_create_event(
        self, event_name: Text = None, participant_email: Text = None, event_start: Text = None, duration: Text = None
    ) -> Any:
        """Add an event to the calendar; returns its id.

        Args:
            event_name: what it is called.
            participant_email: the address of who takes part.
            event_start: as YYYY-MM-DD HH:MM:SS.
            duration: in minutes.
        """
        if not event_name:
            return "Event name not provided."
        if not participant_email:
            return "Participant email not provided."
        if not event_start:
            return "Event start not provided."
        if not duration:
            return "Event duration not provided."
        event_id = str(self.next_id("calendar")).zfill(8)
        row = {"event_id": event_id, "event_name": event_name, "participant_email": participant_email.lower()}
        self.append("calendar", row | {"event_start": event_start, "duration": duration})
        return event_id

    @tool
    def calendar_delete_event(self, event_id: Text = None) -> str:
        """Delete an event.

        Args:
            event_id: eight digits.
        """
        return self.remove("calendar", event_id, "Event")

    @tool
    def calendar_update_event(self, event_id: Text = None, field: Text = None, new_value: Text = None) -> str:
        """Change one field of an event.

        Args:
            event_id: eight digits.
            field: event_name, participant_email, event_start or duration.
            new_value: of the field.
        """
        if not event_id or not field or not new_value:
            return "Event ID, field, or new value not provided."
        if self.find("calendar", event_id) is None:
            return "Event not found."
        value = new_value.lower() if field == "participant_email" else new_value
        self.replace("calendar", event_id, field, value)
        return "Event updated successfully."

    # -- mail ----------------------------------------------------------------------------------------------------------

    @tool
    def email_get_email_information_by_id(self, email_id: Text = None, field: Text = None) -> Any:
        """Look up one field of an email.

        Args:
            email_id: of the email.
            field: email_id, inbox/outbox, sender/recipient, subject, sent_datetime or body.
        """
        return self.field("emails", email_id, field, "Email")

    @tool
    def email_search_emails(self, query: Text = "", date_min: Text = None, date_max: Text = None) -> Any:
        """Find emails that have all words of a query; the latest five are returned.

        Args:
            query: words of the subject, the body or the other person's address.
            date_min: the first day, as YYYY-MM-DD.
            date_max: the last day, as YYYY-MM-DD.
        """
        words = (query or "").lower().split()
        inside = between(date_min, date_max, "sent_datetime", whole_days=True)
        if isinstance(inside, str):
            return inside
        searched = ("subject", "body", "sender/recipient")
        found = []
        for row in self.rows("emails"):
            text = " ".join(row[column] or "" for column in searched).lower()
            if all(word in text for word in words) and inside(row):
                found.append(row)
        return sorted(found, key=lambda row: row["sent_datetime"], reverse=True)[:MOST] or "No emails found."

    @tool
    def email_send_email(self, recipient: Text = None, subject: Text = None, body: Text = None) -> str:
        """Send an email.

        Args:
            recipient: an address.
            subject: the line at its head.
            body: its text.
        """
        if not recipient or not subject or not body:
            return "Recipient, subject, or body not provided."
        if "@" not in recipient or "." not in recipient:
            return "Invalid recipient email address."
        row = {"email_id": str(self.next_id("emails")), "inbox/outbox": "outbox", "sender/recipient": recipient.lower()}
        sent = {"subject": subject, "sent_datetime": f"{TODAY} 00:00:00", "body": body}
        self.append("emails", row | sent)
        return "Email sent successfully."

    @tool
    def email_delete_email(self, email_id: Text = None) -> str:
        """Delete an email.

        Args:
            email_id: of the email.
        """
        return self.remove("emails", email_id, "Email")

    @tool
    def email_forward_email(self, email_id: Text = None, recipient: Text = None) -> str:
        """Send an email on to somebody.

        Args:
            email_id: of the email.
            recipient: an address.
        """
        if not email_id or not recipient:
            return "Email ID or recipient not provided."
        email = self.find("emails", email_id)
        if email is None:
            return "Email not found."
        if "@" not in recipient or "." not in recipient:
            return "Invalid recipient email address."
        result = self.email_send_email(recipient, f"FW: {email['subject']}", email["body"])
        if result == "Email sent successfully.":
            return "Email forwarded successfully."
        return result

    @tool
    def email_reply_email(self, email_id: Text = None, body: Text = None) -> str:
        """Answer an email.

        Args:
            email_id: of the email.
            body: the text of the answer.
        """
        if not email_id or not body:
            return "Email ID or body not provided."
        email = self.find("emails", email_id)
        if email is None:
            return "Email not found."
        result = self.email_send_email(email["sender/recipient"], email["subject"], body)
        if result == "Email sent successfully.":
            return "Email replied successfully."
        return result

    # -- directory -----------------------------------------------------------------------------------------------------

    @tool
    def company_directory_find_email_address(self, name: Text = "") -> Any:
        """Find the addresses of colleagues by name.

        Args:
            name: or part of it.
        """
        if not name:
            return "Name not provided."
        found = [address for address in office().addresses if name.lower() in address]
        return found or "No employee found with that name."


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
        self.append("customers", row)
        return customer_id

    @tool
    def customer_relationship_manager_delete_customer(self, customer_id: Text = None) -> str:
        """Delete a customer.

        Args:
            customer_id: of the customer.
        """
        return self.remove("customers", customer_id, "Customer")
