"""Generated offices."""

from __future__ import annotations

import random
from typing import Any

from rollenv.envs.tools.generated import words
from rollenv.envs.tools.office.backend import Office


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
