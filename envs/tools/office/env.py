"""Requests about calendar, mail and contacts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.generate import GeneratedToolEnv
from rollenv.envs.tools.generated.goals import Draw, Fact, Goal, Template, column
from rollenv.envs.tools.office.backend import Office, make_office, minutes_of
from rollenv.envs.tools.problem import Call

_MOST_PARTICIPANTS = 4


def _find(event: Any) -> list[Call]:
    return [("find_events", {"title": event["title"]})]


def _free(draw: Draw, date: str, start: str, minutes: int, but: str = "") -> bool:
    """Return whether nothing else takes place then."""
    begin = minutes_of(start)
    return all(
        key == but
        or one["date"] != date
        or begin + minutes <= minutes_of(one["start"])
        or minutes_of(one["start"]) + one["minutes"] <= begin
        for key, one in draw.state["events"].items()
    )


def _slot(draw: Draw, minutes: int, taken: bool, but: str = "") -> tuple[str, str] | None:
    """A date and time when another event takes place, or none does."""
    for _ in range(30):
        date = words.day(draw.state["today"], draw.rng.randint(1, 6))
        start = f"{draw.rng.randint(8, 17):02}:{draw.rng.choice(('00', '15', '30', '45'))}"
        if _free(draw, date, start, minutes, but) != taken:
            return date, start
    return None


def _move(draw: Draw, breaks: bool) -> Goal | None:
    key, event = draw.any("events")
    slot = _slot(draw, event["minutes"], breaks, key)
    if slot is None:
        return None
    date, start = slot
    ask = draw.say("Move the {title}", "The {title} has to take place at another time", title=event["title"])
    when = f"{date} at {start}"
    fact = Fact(
        ("when", "time", "date", "day"), f"On {when}.", f"{ask}.", "When should it take place, at what date and time?"
    )
    look = [_find(event), [("get_event", {"event_id": key}), ("list_events", {"date": date})]]
    act = [("move_event", {"event_id": key, "date": date, "start": start})]
    return Goal(f"{ask}: {when}.", look, act, blocks=["move_event"], fact=fact, reads=[("events",)])


def _create(draw: Draw, breaks: bool) -> Goal | None:
    title = draw.one(_titles(draw))
    minutes = draw.rng.choice((30, 60, 90))
    slot = _slot(draw, minutes, breaks)
    if slot is None or title is None:
        return None
    ask = draw.say(
        "Put {title} into the calendar, {date} at {start}, for {minutes} minutes.",
        "Plan {title} of {minutes} minutes on {date} at {start}.",
        title=words.a(title),
        date=slot[0],
        start=slot[1],
        minutes=minutes,
    )
    act = [("create_event", {"title": title, "date": slot[0], "start": slot[1], "minutes": minutes})]
    look = [[("list_events", {"date": slot[0]})]]
    return Goal(ask, look, act, blocks=["create_event"], reads=[("events",)])


def _titles(draw: Draw) -> list[str]:
    there = {one["title"] for one in draw.state["events"].values()}
    drawn = words.pairs(draw.rng, words.TOPICS, words.KINDS, 3)
    return [title for title in drawn if title not in there]


def _first_free(draw: Draw, breaks: bool) -> Goal | None:
    title, date = draw.one(_titles(draw)), words.day(draw.state["today"], draw.rng.randint(1, 6))
    hours = [f"{hour:02}:00" for hour in range(8, 18) if _free(draw, date, f"{hour:02}:00", 60)]
    if title is None or not hours:
        return None
    ask = draw.say(
        "Plan {title} of 60 minutes on {date}, at the first full hour from 08:00 on that is free for all of it.",
        "On {date} we need {title} of 60 minutes: take the earliest free full hour from 08:00 on.",
        title=words.a(title),
        date=date,
    )
    act = [("create_event", {"title": title, "date": date, "start": hours[0], "minutes": 60})]
    return Goal(ask, [[("list_events", {"date": date})]], act, blocks=["create_event"], reads=[("events",)])


def _cancel(draw: Draw, breaks: bool) -> Goal | None:
    key, event = draw.any("events")
    ask = draw.say("Cancel the {title}.", "The {title} will not take place; cancel it.", title=event["title"])
    return Goal(
        ask, [_find(event)], [("cancel_event", {"event_id": key})], blocks=["cancel_event"], reads=[("events", key)]
    )


def _cancel_with(draw: Draw, breaks: bool) -> Goal | None:
    """The event is named by its day and a participant, who has no other one on that day."""
    key, event = draw.any("events")
    same_day = [one for one in draw.state["events"].values() if one["date"] == event["date"]]
    alone = [p for p in event["participants"] if sum(p in one["participants"] for one in same_day) == 1]
    email = draw.one(alone)
    who = next((one["name"] for one in draw.state["contacts"].values() if one["email"] == email), None)
    if who is None:
        return None
    ask = draw.say(
        "Cancel the event with {who} on {date}.",
        "On {date} there is an event with {who}; call it off.",
        who=who,
        date=event["date"],
    )
    look = [[("find_contacts", {"name": who}), ("list_events", {"date": event["date"]})]]
    return Goal(ask, look, [("cancel_event", {"event_id": key})], blocks=["cancel_event"], reads=[("events",)])


def _place(draw: Draw, breaks: bool) -> Goal | None:
    key, event = draw.any("events")
    place = f"room {words.code(draw.rng, 4)}"
    ask = draw.say("The {title} takes place somewhere else", "Change the place of the {title}", title=event["title"])
    fact = Fact(("where", "place", "room"), f"In {place}.", f"{ask}.", "Where does it take place?")
    act = [("set_place", {"event_id": key, "place": place})]
    return Goal(f'{ask}: "{place}".', [_find(event)], act, blocks=["set_place"], fact=fact, reads=[("events", key)])


def _invite(draw: Draw, breaks: bool) -> Goal | None:
    found = draw.record("events", lambda one: (len(one["participants"]) >= _MOST_PARTICIPANTS) == breaks)
    if found is None:
        return None
    key, event = found
    guest = draw.record("contacts", lambda one: one["email"] not in event["participants"])
    if guest is None:
        return None
    name, email = guest[1]["name"], guest[1]["email"]
    ask = draw.say("Invite another one to the {title}", "Someone has to be added to the {title}", title=event["title"])
    fact = Fact(("who", "name", "person"), f"It is {name}.", f"{ask}.", "Who is it?")
    look = [[*_find(event), ("find_contacts", {"name": name})], [("get_event", {"event_id": key})]]
    act = [("add_participant", {"event_id": key, "email": email})]
    return Goal(f"{ask}: {name}.", look, act, blocks=["add_participant"], fact=fact, reads=[("events", key)])


def _uninvite(draw: Draw, breaks: bool) -> Goal | None:
    key, event = draw.any("events")
    email = draw.one(event["participants"])
    who = next(one["name"] for one in draw.state["contacts"].values() if one["email"] == email)
    ask = draw.say(
        "{who} will not come to the {title}; take the name off.",
        "Remove {who} from the {title}.",
        who=who,
        title=event["title"],
    )
    look = [[*_find(event), ("find_contacts", {"name": who})]]
    act = [("remove_participant", {"event_id": key, "email": email})]
    return Goal(ask, look, act, blocks=["remove_participant"], reads=[("events", key)])


def _ask_place(draw: Draw, breaks: bool) -> Goal | None:
    key, event = draw.any("events")
    ask = draw.say("Where is the {title}?", "In which room does the {title} take place?", title=event["title"])
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


#: What can be asked for.
CALENDAR = (
    Template(_move, "An event is never moved to a time at which another event takes place."),
    Template(_create, "A new event is never put at a time at which another event takes place."),
    Template(_first_free),
    Template(_cancel),
    Template(_cancel_with),
    Template(_place),
    Template(_invite, f"Nobody is invited to an event that has {_MOST_PARTICIPANTS} participants or more."),
    Template(_uninvite),
    Template(_ask_place),
)


def _forward(draw: Draw, breaks: bool) -> Goal | None:
    mail = draw.record("mails", lambda one: one["confidential"] == breaks)
    if mail is None:
        return None
    to = draw.rng.choice(list(draw.state["contacts"].values()))
    ask = draw.say(
        "Forward the mail about the {subject}",
        "Somebody needs the mail about the {subject}; forward it",
        subject=mail[1]["subject"],
    )
    fact = Fact(("who", "whom", "to", "recipient"), f"To {to['name']}.", f"{ask}.", "To whom?")
    look = [
        [("find_mails", {"subject": mail[1]["subject"]}), ("find_contacts", {"name": to["name"]})],
        [("read_mail", {"mail_id": mail[0]})],
    ]
    act = [("forward_mail", {"mail_id": mail[0], "email": to["email"]})]
    return Goal(f"{ask}, to {to['name']}.", look, act, blocks=["forward_mail"], fact=fact, reads=[("mails", mail[0])])


def _reply(draw: Draw, breaks: bool) -> Goal | None:
    key, mail = draw.any("mails")
    text = draw.say(
        "We will take {n}.", "The offer of {n} is fine.", "Please call at {n}.", n=draw.rng.randint(100, 999)
    )
    ask = draw.say(
        "Answer the mail about the {subject}", "Reply to the mail about the {subject}", subject=mail["subject"]
    )
    fact = Fact(("what", "text", "say", "write", "answer"), f'Just write "{text}"', f"{ask}.", "What should I write?")
    look = [[("find_mails", {"subject": mail["subject"]})]]
    act = [("reply_to_mail", {"mail_id": key, "text": text})]
    return Goal(f'{ask}. Just write "{text}"', look, act, blocks=["reply_to_mail"], fact=fact, reads=[("mails", key)])


def _delete(draw: Draw, breaks: bool) -> Goal | None:
    mail = draw.record("mails", lambda one: one["flagged"] == breaks)
    if mail is None:
        return None
    ask = draw.say(
        "Delete the mail about the {subject}.",
        "The mail about the {subject} can go; delete it.",
        subject=mail[1]["subject"],
    )
    look = [[("find_mails", {"subject": mail[1]["subject"]})], [("read_mail", {"mail_id": mail[0]})]]
    return Goal(ask, look, [("delete_mail", {"mail_id": mail[0]})], blocks=["delete_mail"], reads=[("mails", mail[0])])


def _phone(draw: Draw, breaks: bool) -> Goal | None:
    key, contact = draw.any("contacts")
    number = words.phone(draw.rng)
    ask = draw.say("{who} has a new phone number", "Change the phone number of {who}", who=contact["name"])
    fact = Fact(("number", "phone"), f"It is {number}.", f"{ask}.", "What is the new number?")
    look = [[("find_contacts", {"name": contact["name"]})]]
    act = [("set_phone", {"contact_id": key, "phone": number})]
    return Goal(f"{ask}: {number}.", look, act, blocks=["set_phone"], fact=fact, reads=[("contacts", key)])


def _ask_phone(draw: Draw, breaks: bool) -> Goal | None:
    key, contact = draw.any("contacts")
    ask = draw.say(
        "What is the phone number of {who}?", "I need to call {who}; tell me the number.", who=contact["name"]
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


def _ask_reference(draw: Draw, breaks: bool) -> Goal | None:
    key, mail = draw.any("mails")
    ask = draw.say(
        "What reference does the mail about the {subject} give?",
        "Tell me the reference in the mail about the {subject}.",
        subject=mail["subject"],
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
        *CALENDAR,
        Template(_forward, "Confidential mails are never forwarded."),
        Template(_reply),
        Template(_delete, "Flagged mails are never deleted."),
        Template(_phone),
        Template(_ask_phone),
        Template(_ask_reference),
    )

    def world(self, rng: random.Random) -> Office:
        return make_office(rng, self.size)
