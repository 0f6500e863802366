"""Calendar, mail and contacts of an office: functions, generated offices, and requests."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from rollenv.core.tools.backend import ToolError, tool
from rollenv.envs.tools.base import Call
from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.generate import GeneratedToolEnv
from rollenv.envs.tools.generated.goals import Fact, Goal, GoalDraw, GoalKind, NothingFits, World, column, date_of

Minutes = Annotated[int, Field(ge=5, le=600)]

_TIME = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d")
_EMAIL = re.compile(r"[^@\s]{1,60}@[^@\s]{1,60}")


def minutes_of(time: str) -> int:
    """Return the minutes from midnight to a time such as 09:30."""
    return int(time[:2]) * 60 + int(time[3:])


def _time(text: str) -> str:
    if not _TIME.fullmatch(text):
        raise ToolError(f"{text[:40]!r} is not a time of the form 09:30")
    return text


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
        day = str(date_of(date))
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
            "date": str(date_of(date)),
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
        self.record("events", event_id).update(date=str(date_of(date)), start=_time(start))
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
    """Generate an office with ``size`` contacts, events and mails in total."""
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
        key: {
            "title": title,
            "date": words.day(today, rng.randint(1, 6)),
            "start": f"{rng.randint(8, 17):02}:{rng.choice(('00', '30'))}",
            "minutes": rng.choice((30, 60, 90)),
            "place": f"room {words.code(rng, 4)}",
            "participants": sorted(rng.sample(emails, rng.randint(1, min(6, len(emails) - 1)))),
        }
        for key, title in zip(words.ids(rng, "E", count), titles, strict=True)
    }
    subjects = words.pairs(rng, words.COLOURS, words.THINGS, count)
    mails = {
        key: {
            "sender": rng.choice(emails),
            "subject": subject,
            "text": f"About the {subject}: the reference is {words.code(rng)}. Please keep it at hand.",
            "flagged": rng.random() < 0.4,
            "confidential": rng.random() < 0.4,
        }
        for key, subject in zip(words.ids(rng, "M", count), subjects, strict=True)
    }
    return Office({"today": today, "contacts": contacts, "events": events, "mails": mails, "sent": []})


_MOST_PARTICIPANTS = 4


def _find(event: Any) -> list[Call]:
    return [("find_events", {"title": event["title"]})]


def _free(draw: GoalDraw, date: str, start: str, minutes: int, but: str = "") -> bool:
    """Return whether a time has no other event."""
    begin = minutes_of(start)
    return all(
        key == but
        or one["date"] != date
        or begin + minutes <= minutes_of(one["start"])
        or minutes_of(one["start"]) + one["minutes"] <= begin
        for key, one in draw.state["events"].items()
    )


def _slot(draw: GoalDraw, minutes: int, taken: bool, but: str = "") -> tuple[str, str]:
    """Draw a date and time with or without another event."""
    for _ in range(30):
        date = words.day(draw.state["today"], draw.rng.randint(1, 6))
        start = f"{draw.rng.randint(8, 17):02}:{draw.rng.choice(('00', '15', '30', '45'))}"
        if _free(draw, date, start, minutes, but) != taken:
            return date, start
    raise NothingFits


def _move(draw: GoalDraw, breaks: bool) -> Goal | None:
    key, event = draw.any("events")
    date, start = _slot(draw, event["minutes"], breaks, key)
    ask = draw.say(f"Move the {event['title']}", f"The {event['title']} has to take place at another time")
    when = f"{date} at {start}"
    fact = Fact(
        ("when", "time", "date", "day"), f"On {when}.", f"{ask}.", "When should it take place, at what date and time?"
    )
    look = [_find(event), [("get_event", {"event_id": key}), ("list_events", {"date": date})]]
    act = [("move_event", {"event_id": key, "date": date, "start": start})]
    return Goal(f"{ask}: {when}.", look, act, blocks=["move_event"], fact=fact, reads=[("events",)])


def _create(draw: GoalDraw, breaks: bool) -> Goal | None:
    title = _title(draw)
    minutes = draw.rng.choice((30, 60, 90))
    slot = _slot(draw, minutes, breaks)
    if not title:
        return None
    ask = draw.say(
        f"Put {words.a(title)} into the calendar, {slot[0]} at {slot[1]}, for {minutes} minutes.",
        f"Plan {words.a(title)} of {minutes} minutes on {slot[0]} at {slot[1]}.",
    )
    act = [("create_event", {"title": title, "date": slot[0], "start": slot[1], "minutes": minutes})]
    look = [[("list_events", {"date": slot[0]})]]
    return Goal(ask, look, act, blocks=["create_event"], reads=[("events",)])


def _title(draw: GoalDraw) -> str:
    """Draw a title that no event has; empty if a few draws find none."""
    titles = {one["title"] for one in draw.state["events"].values()}
    free = [title for title in words.pairs(draw.rng, words.TOPICS, words.KINDS, 3) if title not in titles]
    return draw.rng.choice(free) if free else ""


def _first_free(draw: GoalDraw, breaks: bool) -> Goal | None:
    title, date = _title(draw), words.day(draw.state["today"], draw.rng.randint(1, 6))
    hours = [f"{hour:02}:00" for hour in range(8, 18) if _free(draw, date, f"{hour:02}:00", 60)]
    if not title or not hours:
        return None
    ask = draw.say(
        f"Plan {words.a(title)} of 60 minutes on {date}, "
        "at the first full hour from 08:00 on that is free for all of it.",
        f"On {date} we need {words.a(title)} of 60 minutes: take the earliest free full hour from 08:00 on.",
    )
    act = [("create_event", {"title": title, "date": date, "start": hours[0], "minutes": 60})]
    return Goal(ask, [[("list_events", {"date": date})]], act, blocks=["create_event"], reads=[("events",)])


def _cancel(draw: GoalDraw, breaks: bool) -> Goal | None:
    key, event = draw.any("events")
    ask = draw.say(f"Cancel the {event['title']}.", f"The {event['title']} will not take place; cancel it.")
    return Goal(
        ask, [_find(event)], [("cancel_event", {"event_id": key})], blocks=["cancel_event"], reads=[("events", key)]
    )


def _cancel_with(draw: GoalDraw, breaks: bool) -> Goal | None:
    """Cancel an event that is identified by its day and a participant without other events on that day."""
    key, event = draw.any("events")
    same_day = [one for one in draw.state["events"].values() if one["date"] == event["date"]]
    alone = [p for p in event["participants"] if sum(p in one["participants"] for one in same_day) == 1]
    email = draw.one(alone)
    who = next((one["name"] for one in draw.state["contacts"].values() if one["email"] == email), None)
    if who is None:
        return None
    ask = draw.say(
        f"Cancel the event with {who} on {event['date']}.",
        f"On {event['date']} there is an event with {who}; call it off.",
    )
    look = [[("find_contacts", {"name": who}), ("list_events", {"date": event["date"]})]]
    return Goal(ask, look, [("cancel_event", {"event_id": key})], blocks=["cancel_event"], reads=[("events",)])


def _place(draw: GoalDraw, breaks: bool) -> Goal | None:
    key, event = draw.any("events")
    place = f"room {words.code(draw.rng, 4)}"
    ask = draw.say(f"The {event['title']} takes place somewhere else", f"Change the place of the {event['title']}")
    fact = Fact(("where", "place", "room"), f"In {place}.", f"{ask}.", "Where does it take place?")
    act = [("set_place", {"event_id": key, "place": place})]
    return Goal(f'{ask}: "{place}".', [_find(event)], act, blocks=["set_place"], fact=fact, reads=[("events", key)])


def _invite(draw: GoalDraw, breaks: bool) -> Goal | None:
    key, event = draw.record("events", lambda one: (len(one["participants"]) >= _MOST_PARTICIPANTS) == breaks)
    guest = draw.record("contacts", lambda one: one["email"] not in event["participants"])
    name, email = guest[1]["name"], guest[1]["email"]
    ask = draw.say(f"Invite another one to the {event['title']}", f"Someone has to be added to the {event['title']}")
    fact = Fact(("who", "name", "person"), f"It is {name}.", f"{ask}.", "Who is it?")
    look = [[*_find(event), ("find_contacts", {"name": name})], [("get_event", {"event_id": key})]]
    act = [("add_participant", {"event_id": key, "email": email})]
    return Goal(f"{ask}: {name}.", look, act, blocks=["add_participant"], fact=fact, reads=[("events", key)])


def _uninvite(draw: GoalDraw, breaks: bool) -> Goal | None:
    key, event = draw.any("events")
    email = draw.one(event["participants"])
    who = next(one["name"] for one in draw.state["contacts"].values() if one["email"] == email)
    ask = draw.say(
        f"{who} will not come to the {event['title']}; take the name off.", f"Remove {who} from the {event['title']}."
    )
    look = [[*_find(event), ("find_contacts", {"name": who})]]
    act = [("remove_participant", {"event_id": key, "email": email})]
    return Goal(ask, look, act, blocks=["remove_participant"], reads=[("events", key)])


def _ask_place(draw: GoalDraw, breaks: bool) -> Goal | None:
    key, event = draw.any("events")
    ask = draw.say(f"Where is the {event['title']}?", f"In which room does the {event['title']} take place?")
    room = _room(event)
    look = [_find(event), [("get_event", {"event_id": key})]]
    return Goal(
        ask,
        look,
        done=f"It is in room {room}.",
        answers=[room],
        reads=[("events", key)],
        rivals=lambda state: map(_room, state["events"].values()),
    )


def _room(event: Mapping[str, Any]) -> str:
    return str(event["place"]).removeprefix("room ")


def _forward(draw: GoalDraw, breaks: bool) -> Goal | None:
    mail = draw.record("mails", lambda one: one["confidential"] == breaks)
    to = draw.rng.choice(list(draw.state["contacts"].values()))
    ask = draw.say(
        f"Forward the mail about the {mail[1]['subject']}",
        f"Somebody needs the mail about the {mail[1]['subject']}; forward it",
    )
    fact = Fact(("who", "whom", "to", "recipient"), f"To {to['name']}.", f"{ask}.", "To whom?")
    look = [
        [("find_mails", {"subject": mail[1]["subject"]}), ("find_contacts", {"name": to["name"]})],
        [("read_mail", {"mail_id": mail[0]})],
    ]
    act = [("forward_mail", {"mail_id": mail[0], "email": to["email"]})]
    return Goal(f"{ask}, to {to['name']}.", look, act, blocks=["forward_mail"], fact=fact, reads=[("mails", mail[0])])


def _reply(draw: GoalDraw, breaks: bool) -> Goal | None:
    key, mail = draw.any("mails")
    n = draw.rng.randint(100, 999)
    text = draw.say(f"We will take {n}.", f"The offer of {n} is fine.", f"Please call at {n}.")
    ask = draw.say(f"Answer the mail about the {mail['subject']}", f"Reply to the mail about the {mail['subject']}")
    fact = Fact(("what", "text", "say", "write", "answer"), f'Just write "{text}"', f"{ask}.", "What should I write?")
    look = [[("find_mails", {"subject": mail["subject"]})]]
    act = [("reply_to_mail", {"mail_id": key, "text": text})]
    return Goal(f'{ask}. Just write "{text}"', look, act, blocks=["reply_to_mail"], fact=fact, reads=[("mails", key)])


def _delete(draw: GoalDraw, breaks: bool) -> Goal | None:
    mail = draw.record("mails", lambda one: one["flagged"] == breaks)
    ask = draw.say(
        f"Delete the mail about the {mail[1]['subject']}.",
        f"The mail about the {mail[1]['subject']} can go; delete it.",
    )
    look = [[("find_mails", {"subject": mail[1]["subject"]})], [("read_mail", {"mail_id": mail[0]})]]
    return Goal(ask, look, [("delete_mail", {"mail_id": mail[0]})], blocks=["delete_mail"], reads=[("mails", mail[0])])


def _phone(draw: GoalDraw, breaks: bool) -> Goal | None:
    key, contact = draw.any("contacts")
    number = words.phone(draw.rng)
    ask = draw.say(f"{contact['name']} has a new phone number", f"Change the phone number of {contact['name']}")
    fact = Fact(("number", "phone"), f"It is {number}.", f"{ask}.", "What is the new number?")
    look = [[("find_contacts", {"name": contact["name"]})]]
    act = [("set_phone", {"contact_id": key, "phone": number})]
    return Goal(f"{ask}: {number}.", look, act, blocks=["set_phone"], fact=fact, reads=[("contacts", key)])


def _ask_phone(draw: GoalDraw, breaks: bool) -> Goal | None:
    key, contact = draw.any("contacts")
    ask = draw.say(
        f"What is the phone number of {contact['name']}?", f"I need to call {contact['name']}; tell me the number."
    )
    look = [[("find_contacts", {"name": contact["name"]})], [("get_contact", {"contact_id": key})]]
    number = contact["phone"]
    return Goal(
        ask,
        look,
        done=f"The number is {number}.",
        answers=[number],
        reads=[("contacts", key)],
        rivals=column("contacts", "phone"),
    )


def _ask_reference(draw: GoalDraw, breaks: bool) -> Goal | None:
    key, mail = draw.any("mails")
    ask = draw.say(
        f"What reference does the mail about the {mail['subject']} give?",
        f"Tell me the reference in the mail about the {mail['subject']}.",
    )
    code = _reference(mail)
    look = [[("find_mails", {"subject": mail["subject"]})], [("read_mail", {"mail_id": key})]]
    return Goal(
        ask,
        look,
        done=f"The reference is {code}.",
        answers=[code],
        reads=[("mails", key)],
        rivals=lambda state: map(_reference, state["mails"].values()),
    )


def _reference(mail: Mapping[str, Any]) -> str:
    return str(mail["text"]).partition("the reference is ")[2][:6]


class OfficeEnv(GeneratedToolEnv):
    """An assistant's work: calendar, mail and contacts, looked up and changed on request."""

    intro = "You look after the calendar, the mail and the contacts of an office. Today is {today}."
    templates = (
        GoalKind(_move, "An event is never moved to a time at which another event takes place."),
        GoalKind(_create, "A new event is never put at a time at which another event takes place."),
        GoalKind(_first_free),
        GoalKind(_cancel),
        GoalKind(_cancel_with),
        GoalKind(_place),
        GoalKind(_invite, f"Nobody is invited to an event that has {_MOST_PARTICIPANTS} participants or more."),
        GoalKind(_uninvite),
        GoalKind(_ask_place),
        GoalKind(_forward, "Confidential mails are never forwarded."),
        GoalKind(_reply),
        GoalKind(_delete, "Flagged mails are never deleted."),
        GoalKind(_phone),
        GoalKind(_ask_phone),
        GoalKind(_ask_reference),
    )

    def world(self, rng: random.Random) -> Office:
        return make_office(rng, self.size)
