"""Requests about calendar, mail and contacts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from rollenv.envs.tools.generated import words
from rollenv.envs.tools.generated.generate import GeneratedToolEnv
from rollenv.envs.tools.generated.goals import Draw, Fact, Goal, Template, column
from rollenv.envs.tools.office.backend import Office
from rollenv.envs.tools.office.calendar import CALENDAR
from rollenv.envs.tools.office.records import make_office


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
