"""Random draws of realistic contents: words, names, hosts, times. A function of the seed alone."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from typing import TypeVar

from rollenv.envs.shell.words import FIRST_NAMES, LAST_NAMES, TOPICS, WORDS

_Item = TypeVar("_Item")
_FIRST_DAY = datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC)
#: The number of records of a task of each size, from and to.
_RECORDS = {1: (6, 20), 2: (20, 40), 3: (40, 80), 4: (120, 250), 5: (500, 900)}
#: The number of files of a task of each size.
_FILES = {1: (3, 12), 2: (6, 14), 3: (10, 18), 4: (18, 30), 5: (30, 50)}


def listed(items: Sequence[str]) -> str:
    """Items in a sentence, as in: a, b and c."""
    return " and ".join(part for part in (", ".join(items[:-1]), items[-1]) if part)


class Draw:
    """A private stream of random draws."""

    def __init__(self, seed: str):
        self.rng = random.Random(seed)

    def number(self, least: int, most: int) -> int:
        """A whole number from least to most, both included."""
        return self.rng.randint(least, most)

    def pick(self, items: Sequence[_Item]) -> _Item:
        """One of the items."""
        return items[self.rng.randrange(len(items))]

    def some(self, items: Sequence[_Item], count: int) -> list[_Item]:
        """Different items, in random order.

        Args:
            count: how many; all if there are fewer.
        """
        return self.rng.sample(list(items), min(count, len(items)))

    def mixed(self, items: Sequence[_Item]) -> list[_Item]:
        """All items in random order."""
        return self.some(items, len(items))

    def chance(self, share: float) -> bool:
        """True in this share of the draws."""
        return self.rng.random() < share

    def records(self, size: int) -> int:
        """Return the number of lines or rows of a task of this size."""
        return self.number(*_RECORDS[size])

    def files(self, size: int) -> int:
        """Return the number of files of a task of this size."""
        return self.number(*_FILES[size])

    def word(self) -> str:
        """A common noun in small letters."""
        return self.pick(WORDS)

    def words(self, count: int) -> list[str]:
        """Different nouns; joined pairs where more are wanted than there are."""
        if count <= len(WORDS) // 2:
            return self.some(WORDS, count)
        found: dict[str, None] = {}
        while len(found) < count:
            found[f"{self.word()}-{self.word()}"] = None
        return list(found)

    def label(self) -> str:
        """A noun and a number, as in lamp-4821: seldom drawn twice."""
        return f"{self.word()}-{self.number(100, 9999)}"

    def labels(self, count: int) -> list[str]:
        """Labels with different nouns."""
        return [f"{word}-{self.number(100, 9999)}" for word in self.words(count)]

    def topic(self) -> str:
        """A noun that a folder may be called."""
        return self.pick(TOPICS)

    def topics(self, count: int) -> list[str]:
        """Different nouns that folders may be called."""
        return self.some(TOPICS, count)

    def sentence(self) -> str:
        """Four to nine words."""
        return " ".join(self.some(WORDS, self.number(4, 9)))

    def text(self, lines: int) -> str:
        """Lines of words, each with its line end."""
        return "".join(f"{self.sentence()}\n" for _ in range(lines))

    def person(self) -> str:
        """A first and a last name."""
        return f"{self.pick(FIRST_NAMES)} {self.pick(LAST_NAMES)}"

    def people(self, count: int) -> list[str]:
        """Different persons."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.person()] = None
        return list(found)

    def address(self) -> str:
        """An IPv4 address of a private network."""
        return f"10.{self.number(0, 40)}.{self.number(0, 255)}.{self.number(1, 254)}"

    def token(self, length: int = 12) -> str:
        """Random hexadecimal digits."""
        return "".join(self.pick("0123456789abcdef") for _ in range(length))

    def moment(self, days: int = 700) -> datetime.datetime:
        """A time in UTC, to the second."""
        return _FIRST_DAY + datetime.timedelta(seconds=self.number(0, days * 86400 - 1))

    def moments(self, count: int, hours: float) -> list[datetime.datetime]:
        """Times in UTC in ascending order, all different.

        Args:
            hours: from the first to the last at most; at least one second for each.
        """
        start = self.moment()
        seconds = self.rng.sample(range(max(count, int(hours * 3600))), count)
        return [start + datetime.timedelta(seconds=second) for second in sorted(seconds)]

    def price(self, least: int = 1, most: int = 200) -> str:
        """An amount with two decimals.

        Args:
            least: the lowest amount, in whole units.
            most: whole units, above the highest.
        """
        cents = self.number(least * 100, most * 100 - 1)
        return f"{cents // 100}.{cents % 100:02d}"
