"""Vocabulary of generated worlds: names, things, places, topics, dates."""

from __future__ import annotations

import datetime
import random


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST = _split("""
    Ada Amir Anna Bela Boris Carla Chen Clara Dana Diego Edith Elena Emil Farah Felix Fiona Gita Goran Greta Hana
    Hugo Ida Igor Ines Ivan Jana Jonas Julia Kai Karin Kenji Lars Leila Lena Lucas Mara Marco Mei Milan Mira Nadia
    Nils Nora Olga Omar Oscar Paula Pedro Petra Ravi Rita Rosa Ruben Sana Selma Simon Sofia Stefan Tara Tom Uma Vera
    Viktor Wanda Yara Yusuf Zoe
""")
LAST = _split("""
    Abbas Adler Baker Berg Brandt Castro Cohen Costa Dietz Duarte Egan Farkas Fischer Fuchs Garcia Gruber Haas
    Haddad Hughes Ibsen Ito Jensen Kaplan Keller Khan Kovacs Kruger Lang Larsen Lopez Maier Mendez Meyer Mori Nagy
    Novak Olsen Ortega Patel Peters Quinn Ramos Reyes Rossi Sato Schmidt Silva Singh Sorensen Suzuki Tanaka Tran
    Urban Vargas Vogel Wagner Walsh Weiss Wolff Young Zeman Ziegler
""")
COLOURS = _split("""
    amber beige black blue brown crimson green grey ivory navy olive orange pink red silver teal
""")
THINGS = _split("""
    armchair backpack basket blanket bookcase bottle camera candle carpet clock curtain desk doormat drill fan flask
    guitar hammer headset helmet jacket kettle keyboard ladder lamp lantern mirror monitor mug notebook pillow
    printer radio scarf shelf speaker stool suitcase table teapot tent toaster towel tripod umbrella vase wallet
    watch
""")
CITIES = _split("""
    Aldmoor Brackton Calder Dunmere Eastvale Fernholt Glenford Harrowby Ivybridge Kestrel Larkhill Marlow Northwick
    Oakham Pinefield Quarrendon Ravenscar Silverton Thornbury Ulverley Westmarch Yarrow
""")
STREETS = _split("""
    Alder Birch Cedar Chapel Church Forest Garden Harbour Hill Lake Linden Market Mill Park River Station
""")
TOPICS = _split("""
    audit budget catering contract customs delivery design forecast hiring inventory invoice launch lease licence
    logo marketing migration office packaging parking payroll pricing prototype renovation roadmap safety sales
    security survey training travel warranty website workshop
""")
KINDS = _split("""
    briefing check discussion interview kickoff planning presentation review session update
""")
TEAMS = ("sales", "finance", "design", "support", "logistics", "legal")
SYLLABLES = _split("""
    ba be bor cal da del dor en fa fen gar go hal in ka kel lo lun ma mer no or pa quil ra ren sol ta tor um ve vin
    zan
""")


def people(rng: random.Random, count: int) -> list[str]:
    """Draw different full names."""
    numbers = rng.sample(range(len(FIRST) * len(LAST)), count)
    return [f"{FIRST[n % len(FIRST)]} {LAST[n // len(FIRST)]}" for n in numbers]


def pairs(rng: random.Random, first: tuple[str, ...], second: tuple[str, ...], count: int) -> list[str]:
    """Draw different pairs of a word of each tuple."""
    numbers = rng.sample(range(len(first) * len(second)), count)
    return [f"{first[n % len(first)]} {second[n // len(first)]}" for n in numbers]


def a(noun: str) -> str:
    """Put the indefinite article before a noun."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def email(name: str) -> str:
    """Return the email address for a full name."""
    return f"{name.lower().replace(' ', '.')}@example.com"


def phone(rng: random.Random) -> str:
    """Draw a phone number that cannot be guessed."""
    return f"0{rng.randint(200, 999)}-{rng.randint(100000, 999999)}"


def address(rng: random.Random) -> str:
    """Draw a street, a number and a city."""
    return f"{rng.choice(STREETS)} Street {rng.randint(1, 199)}, {rng.choice(CITIES)}"


def code(rng: random.Random, length: int = 6) -> str:
    """Draw capitals and digits that cannot be guessed or confused."""
    return "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(length))


def name(rng: random.Random, syllables: int = 3) -> str:
    """Draw an invented name."""
    return "".join(rng.choice(SYLLABLES) for _ in range(syllables)).capitalize()


def day(start: str, days: int) -> str:
    """Add days (which may be negative) to a date of the form 2031-05-14."""
    return str(datetime.date.fromisoformat(start) + datetime.timedelta(days=days))


def ids(rng: random.Random, letter: str, count: int) -> list[str]:
    """Draw different ids such as K4821, in random order."""
    return [f"{letter}{n}" for n in rng.sample(range(1000, 9000), count)]
