"""WorkBench's calendar, mail and company directory."""

from __future__ import annotations

from typing import Any

from rollenv.envs.tools.workbench.tables import MOST, TODAY, Tables, Text, between, has, office
from rollenv.tools.backend import tool


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
        self,
        event_name: Text = None,
        participant_email: Text = None,
        event_start: Text = None,
        duration: Text = None,
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
        self.append("calendar", row | {"event_start": event_start, "duration": duration}, label=0)
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
        if field not in self.columns("calendar"):
            self.state["added"].append(field)
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
        self.append("emails", row | sent, label=len(self.state["emails"]))
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
        said = self.email_send_email(recipient, f"FW: {email['subject']}", email["body"])
        return "Email forwarded successfully." if said == "Email sent successfully." else said

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
        said = self.email_send_email(email["sender/recipient"], email["subject"], body)
        return "Email replied successfully." if said == "Email sent successfully." else said

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
