"""The functions of calendar, mail and contacts, and offices to call them on."""

from __future__ import annotations

import datetime
import random
import re
from typing import Annotated, Any

from pydantic import Field

from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.goals import World
from rollenv.tools.backend import ToolError, tool

Minutes = Annotated[int, Field(ge=5, le=600)]

_TIME = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d")
_EMAIL = re.compile(r"[^@\s]{1,60}@[^@\s]{1,60}")


def minutes_of(time: str) -> int:
    """Minutes from midnight to a time such as 09:30."""
    return int(time[:2]) * 60 + int(time[3:])


def _time(text: str) -> str:
    if not _TIME.fullmatch(text):
        raise ToolError(f"{text[:40]!r} is not a time of the form 09:30")
    return text


def _date(text: str) -> str:
    try:
        return str(datetime.date.fromisoformat(text[:20]))
    except ValueError:
        raise ToolError(f"{text[:40]!r} is not a date of the form 2031-05-14") from None


def _email(text: str) -> str:
    if not _EMAIL.fullmatch(text):
        raise ToolError(f"{text[:60]!r} is not an email address")
    return text.lower()


class Office(World):
    """Contacts, events and mails."""

    @tool
    def find_contacts(self, name: str) -> list[dict[str, Any]]:
        """Search contacts by name; gives ids, names and email addresses."""
        return [{key: one[key] for key in ("id", "name", "email")} for one in self.matching("contacts", "name", name)]

    @tool
    def get_contact(self, contact_id: str) -> dict[str, Any]:
        """All data of a contact: name, email, phone and team."""
        return self.record("contacts", contact_id)

    @tool
    def set_phone(self, contact_id: str, phone: str) -> str:
        """Change the phone number of a contact.

        Args:
            contact_id: such as K1234.
            phone: the new number.
        """
        self.record("contacts", contact_id)["phone"] = phone.strip()[:40]
        return f"contact {contact_id} has a new phone number"

    @tool
    def find_events(self, title: str) -> list[dict[str, Any]]:
        """Search events by title; gives ids, titles and dates."""
        return [{key: one[key] for key in ("id", "title", "date")} for one in self.matching("events", "title", title)]

    @tool
    def list_events(self, date: str) -> list[dict[str, Any]]:
        """All events of a day, with all their data."""
        day = _date(date)
        found = [{"id": key, **one} for key, one in self.state["events"].items() if one["date"] == day]
        return sorted(found, key=lambda one: (str(one["start"]), str(one["id"])))

    @tool
    def get_event(self, event_id: str) -> dict[str, Any]:
        """All data of an event: title, date, start, minutes, place and participants."""
        return self.record("events", event_id)

    @tool
    def create_event(self, title: str, date: str, start: str, minutes: Minutes) -> str:
        """Put an event without participants into the calendar.

        Args:
            title: in small letters.
            date: as in 2031-05-14.
            start: as in 09:30.
            minutes: how long it takes.
        """
        key, title = self.next_id("events"), " ".join(title.split())[:100]
        self.state["events"][key] = {
            "title": title.lower(),
            "date": _date(date),
            "start": _time(start),
            "minutes": minutes,
            "place": "",
            "participants": [],
        }
        return f"event {key} is in the calendar"

    @tool
    def move_event(self, event_id: str, date: str, start: str) -> str:
        """Move an event to a date and time.

        Args:
            event_id: such as E1234.
            date: as in 2031-05-14.
            start: as in 09:30.
        """
        self.record("events", event_id).update(date=_date(date), start=_time(start))
        return f"event {event_id} is moved"

    @tool
    def set_place(self, event_id: str, place: str) -> str:
        """Change where an event takes place.

        Args:
            event_id: such as E1234.
            place: such as room AB12.
        """
        self.record("events", event_id)["place"] = place.strip()[:40]
        return f"event {event_id} has a new place"

    @tool
    def cancel_event(self, event_id: str) -> str:
        """Take an event out of the calendar."""
        self.record("events", event_id)
        del self.state["events"][event_id]
        return f"event {event_id} is cancelled"

    @tool
    def add_participant(self, event_id: str, email: str) -> str:
        """Invite someone to an event.

        Args:
            event_id: such as E1234.
            email: of a contact.
        """
        event, email = self.record("events", event_id), _email(email)
        if email in event["participants"]:
            raise ToolError(f"{email} takes part in {event_id} already")
        event["participants"] = sorted([*event["participants"], email])
        return f"{email} is invited to {event_id}"

    @tool
    def remove_participant(self, event_id: str, email: str) -> str:
        """Take someone off the participants of an event.

        Args:
            event_id: such as E1234.
            email: of a participant.
        """
        event, email = self.record("events", event_id), _email(email)
        if email not in event["participants"]:
            raise ToolError(f"{email} does not take part in {event_id}")
        event["participants"] = [one for one in event["participants"] if one != email]
        return f"{email} is off {event_id}"

    @tool
    def find_mails(self, subject: str) -> list[dict[str, Any]]:
        """Search mails in the inbox by subject; gives ids, senders and subjects."""
        return [
            {key: one[key] for key in ("id", "sender", "subject")} for one in self.matching("mails", "subject", subject)
        ]

    @tool
    def read_mail(self, mail_id: str) -> dict[str, Any]:
        """All of a mail: sender, subject, text, whether it is flagged and whether it is confidential."""
        return self.record("mails", mail_id)

    @tool
    def forward_mail(self, mail_id: str, email: str) -> str:
        """Forward a mail to someone.

        Args:
            mail_id: such as M1234.
            email: who gets it.
        """
        self.record("mails", mail_id)
        self.state["sent"].append({"kind": "forward", "mail": mail_id, "to": _email(email)})
        return f"mail {mail_id} is forwarded to {email}"

    @tool
    def reply_to_mail(self, mail_id: str, text: str) -> str:
        """Answer a mail with exactly this text.

        Args:
            mail_id: such as M1234.
            text: the whole answer.
        """
        self.record("mails", mail_id)
        self.state["sent"].append({"kind": "reply", "mail": mail_id, "text": text.strip()[:1000]})
        return f"mail {mail_id} is answered"

    @tool
    def delete_mail(self, mail_id: str) -> str:
        """Delete a mail."""
        self.record("mails", mail_id)
        del self.state["mails"][mail_id]
        return f"mail {mail_id} is deleted"


def make_office(rng: random.Random, size: int) -> Office:
    """An office with a calendar and an inbox.

    Args:
        size: contacts, events and mails together.
    """
    count = max(3, size // 3)
    today = words.day("2031-01-01", rng.randint(0, 1000))
    names = words.people(rng, count)
    contacts = {
        key: {"name": name, "email": words.email(name), "phone": words.phone(rng), "team": rng.choice(words.TEAMS)}
        for key, name in zip(words.ids(rng, "K", count), names, strict=True)
    }
    emails = [one["email"] for one in contacts.values()]
    titles = words.pairs(rng, words.TOPICS, words.KINDS, count)
    events = {
        key: _event(rng, title, today, emails) for key, title in zip(words.ids(rng, "E", count), titles, strict=True)
    }
    subjects = words.pairs(rng, words.COLOURS, words.THINGS, count)
    mails = {
        key: _mail(rng, subject, rng.choice(emails))
        for key, subject in zip(words.ids(rng, "M", count), subjects, strict=True)
    }
    return Office({"today": today, "contacts": contacts, "events": events, "mails": mails, "sent": []})


def _event(rng: random.Random, title: str, today: str, emails: list[str]) -> dict[str, Any]:
    return {
        "title": title,
        "date": words.day(today, rng.randint(1, 6)),
        "start": f"{rng.randint(8, 17):02}:{rng.choice(('00', '30'))}",
        "minutes": rng.choice((30, 60, 90)),
        "place": f"room {words.code(rng, 4)}",
        "participants": sorted(rng.sample(emails, rng.randint(1, min(6, len(emails) - 1)))),
    }


def _mail(rng: random.Random, subject: str, sender: str) -> dict[str, Any]:
    return {
        "sender": sender,
        "subject": subject,
        "text": f"About the {subject}: the reference is {words.code(rng)}. Please keep it at hand.",
        "flagged": rng.random() < 0.4,
        "confidential": rng.random() < 0.4,
    }
